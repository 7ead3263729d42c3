package depot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/rowraft/rowraft"
)

// s3PartBytes is the size of the parts of an upload, each held in memory: 10,000
// of them make files of up to 160 GB.
const s3PartBytes = 16 << 20

// S3 is a bucket and a prefix in it.
type S3 struct {
	client *minio.Client
	bucket string
	prefix string // "" or ends in "/"
}

// openS3 takes bucket/prefix. Where the service is and who asks come from the
// environment, as the tools of AWS read it: AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL (else AWS itself), AWS_REGION or AWS_DEFAULT_REGION,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.
func openS3(rest string) (*S3, error) {
	bucket, prefix, _ := strings.Cut(rest, "/")
	if bucket == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "checkpoint destination s3://%s: want s3://bucket/prefix",
			rest)
	}
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	endpoint := firstSet("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	if endpoint == "" {
		endpoint = "https://s3.amazonaws.com"
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"AWS_ENDPOINT_URL %q: want http://host:port or https://host:port", endpoint)
	}
	if os.Getenv("AWS_ACCESS_KEY_ID") == "" || os.Getenv("AWS_SECRET_ACCESS_KEY") == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "checkpoint destination s3://%s: AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY are not set in the environment of this process", rest)
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: credentials.NewEnvAWS(), Secure: u.Scheme == "https", Region: firstSet("AWS_REGION", "AWS_DEFAULT_REGION"),
	})
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "S3 client: %w", err)
	}
	return &S3{client: client, bucket: bucket, prefix: prefix}, nil
}

func firstSet(names ...string) string {
	for _, n := range names {
		if v := os.Getenv(n); v != "" {
			return v
		}
	}
	return ""
}

func (s *S3) String() string { return strings.TrimSuffix("s3://"+s.bucket+"/"+s.prefix, "/") }

// Write implements Depot. The object appears when all of it has arrived.
func (s *S3) Write(ctx context.Context, name string, fill func(io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := s.client.PutObject(ctx, s.bucket, s.prefix+name, r, -1,
			minio.PutObjectOptions{PartSize: s3PartBytes, ContentType: "application/octet-stream"})
		r.CloseWithError(err) // the goroutine that fills the file gets the error
		done <- err
	}()
	fillErr := fill(w)
	if fillErr != nil {
		cancel() // before the end of the pipe could complete the object
	}
	w.CloseWithError(fillErr)
	if err := <-done; err != nil || fillErr != nil {
		if fillErr != nil && !errors.Is(fillErr, err) && !errors.Is(err, context.Canceled) {
			err = errors.Join(fillErr, err)
		} else if fillErr != nil {
			err = fillErr
		}
		return s.explain(name, err)
	}
	return nil
}

// Put implements Depot.
func (s *S3) Put(ctx context.Context, name string, content []byte) error {
	_, err := s.client.PutObject(ctx, s.bucket, s.prefix+name, bytes.NewReader(content), int64(len(content)),
		minio.PutObjectOptions{ContentType: "application/octet-stream"})
	return s.explain(name, err)
}

// PutNew implements Depot. A service that does not know the condition may ignore
// it, so it is asked before, too.
func (s *S3) PutNew(ctx context.Context, name string, content []byte) error {
	taken := rowraft.Errorf(rowraft.CodeAlreadyExists, "%s exists in %s", name, s)
	_, err := s.client.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{})
	if err == nil {
		return taken
	}
	if minio.ToErrorResponse(err).Code != "NoSuchKey" {
		return s.explain(name, err)
	}
	opts := minio.PutObjectOptions{ContentType: "application/octet-stream"}
	opts.SetMatchETagExcept("*")
	_, err = s.client.PutObject(ctx, s.bucket, s.prefix+name, bytes.NewReader(content), int64(len(content)), opts)
	if minio.ToErrorResponse(err).Code == "PreconditionFailed" {
		return taken
	}
	return s.explain(name, err)
}

// Open implements Depot.
func (s *S3) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	o, err := s.client.GetObject(ctx, s.bucket, s.prefix+name, minio.GetObjectOptions{})
	if err == nil {
		_, err = o.Stat() // GetObject itself sends no request
	}
	if err != nil {
		return nil, s.explain(name, err)
	}
	return o, nil
}

// List implements Depot.
func (s *S3) List(ctx context.Context, name string) ([]Entry, error) {
	prefix := s.prefix
	if name != "" {
		prefix += name + "/"
	}
	var out []Entry
	for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, s.explain(prefix, o.Err)
		}
		moved(ctx)
		rel := strings.TrimPrefix(o.Key, s.prefix)
		if path.Clean(rel) == rel && strings.Count(rel, "/") == 1 {
			out = append(out, Entry{rel, o.Size})
		}
	}
	return out, ctx.Err()
}

// Remove implements Depot.
func (s *S3) Remove(ctx context.Context, names ...string) error {
	for _, n := range names {
		if err := s.client.RemoveObject(ctx, s.bucket, s.prefix+n, minio.RemoveObjectOptions{}); err != nil {
			return s.explain(n, err)
		}
		moved(ctx)
	}
	return nil
}

// explain gives an answer of the service a Code.
func (s *S3) explain(name string, err error) error {
	if err == nil || rowraft.CodeOf(err) != rowraft.CodeUnknown {
		return err
	}
	switch minio.ToErrorResponse(err).Code {
	case "NoSuchKey":
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no %s in %s", name, s)
	case "NoSuchBucket":
		return rowraft.Errorf(rowraft.CodeNotFound, "the bucket of %s does not exist", s)
	case "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch":
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s refuses the credentials of this process: %w", s, err)
	}
	return fmt.Errorf("%s in %s: %w", name, s, err)
}
