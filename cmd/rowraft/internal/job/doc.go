// Package job holds the commands `rowraft job`, for training jobs.
package job
