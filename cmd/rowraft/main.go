package main

import (
	"os"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

func main() { os.Exit(cli.Main(newRoot(remote.NewFlags(buildVersion().Version, os.Exit)))) }
