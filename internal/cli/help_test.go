package cli

import "testing"

func TestHelpFitsTheTerminal(t *testing.T) {
	const help = `The global flags, and all flags of server, can also be given as
environment
variables.

Exit codes:
    0  done
    6  of a server: its data is damaged, or newer than this binary, so that
       a restart would end the same way

Usage:
  rowraft [flags] and a usage that is longer than forty columns

Examples:
  rowraft table create user_emb --dim 16 --optimizer adagrad

Flags:
      --cert string   certificate of this side, a PEM file
  -h, --help          help for rowraft
`
	const want = `The global flags, and all flags of
server, can also be given as environment
variables.

Exit codes:
    0  done
    6  of a server: its data is damaged,
       or newer than this binary, so
       that a restart would end the same
       way

Usage:
  rowraft [flags] and a usage that is longer than forty columns

Examples:
  rowraft table create user_emb --dim 16 --optimizer adagrad

Flags:
      --cert string   certificate of
                      this side, a PEM
                      file
  -h, --help          help for rowraft
`
	if got := wrapText(help, 40); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	const long = "a-word-that-is-longer-than-the-line and more\n"
	if got := wrapText(long, 20); got != long {
		t.Errorf("got %q", got)
	}
}
