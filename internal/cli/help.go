package cli

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// wrapHelp makes the help of root, and of all commands below it, break its lines between words if stdout is a
// terminal. A file or a pipe gets the lines as they are.
func wrapHelp(root *cobra.Command, stdout io.Writer) {
	if !IsTerminal(stdout) {
		return
	}
	width, _, err := term.GetSize(int(stdout.(*os.File).Fd()))
	if err != nil || width < 40 {
		return
	}
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var b bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&b)
		help(cmd, args)
		cmd.SetOut(out)
		_, _ = io.WriteString(out, wrapText(b.String(), width)) // Run's writer keeps the error
	})
}

// named is the begin of a line that explains a name, such as a flag, up to the explanation.
var named = regexp.MustCompile(`^ +\S+(?: \S+)* {2,}`)

// headings are those of cobra.
var headings = []string{"Usage:", "Examples:", "Available Commands:", "Flags:", "Global Flags:"}

// wrapText fits the text of a help into width columns. It joins the lines of a paragraph before it breaks them, and
// indents the explanation of a flag or a command as a block. Examples stay as they are, to be copied.
func wrapText(s string, width int) string {
	var b strings.Builder
	para, hang := "", 0 // the paragraph so far, and the indentation of its further lines
	flush := func() {
		for len([]rune(para)) > width {
			r := []rune(para)
			at := strings.LastIndex(string(r[:width+1]), " ")
			if at < 0 || strings.TrimSpace(para[:at]) == "" || at <= hang { // one long word
				break
			}
			b.WriteString(strings.TrimRight(para[:at], " ") + "\n")
			para = strings.Repeat(" ", hang) + strings.TrimLeft(para[at:], " ")
		}
		if para != "" {
			b.WriteString(para + "\n")
		}
		para = ""
	}
	section := "" // the heading above: empty in the text before the first one
	for line := range strings.Lines(s) {
		line = strings.TrimRight(line, " \n")
		indent := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case line == "":
			flush()
			b.WriteString("\n")
		case slices.Contains(headings, line):
			flush()
			section = line
			b.WriteString(line + "\n")
		case section == "Examples:" || section == "Usage:":
			b.WriteString(line + "\n")
		case section == "" && para != "" && indent == hang:
			para += " " + line[indent:]
		default:
			flush()
			para, hang = line, indent
			if n := len(named.FindString(line)); n > 0 && n <= width*2/3 {
				hang = n
			}
		}
	}
	flush()
	return b.String()
}
