package tidy

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// Command is a call of a program that a Markdown page shows.
type Command struct {
	Where string   // page:line
	Args  []string // without the program's name
	Whole bool     // in a code block; false: in running text, which may omit arguments
}

var (
	assignment = regexp.MustCompile(`^[A-Z_]+=`)
	codeSpan   = regexp.MustCompile("`([^`\n]+)`")
	prompt     = regexp.MustCompile(`^(?:[a-z0-9]+)?[$#] `)
)

// Commands lists the calls of program in the Markdown text of a page: in code blocks, and in code spans. In a
// block of kind `console` only lines that begin with a prompt ("$ ", "n1# ") are commands; the others are their
// output. A block of kind `text` is a drawing and has none.
func Commands(page, text, program string) ([]Command, error) {
	var out []Command
	var block struct {
		open, console, drawing bool
		line                   int
		pending                string
	}
	for i, line := range strings.Split(text, "\n") {
		where := fmt.Sprintf("%s:%d", page, i+1)
		if kind, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
			if block.pending != "" {
				return nil, fmt.Errorf("%s: the last command of the block ends with a backslash", where)
			}
			block.open, block.console, block.drawing = !block.open, strings.TrimSpace(kind) == "console",
				strings.TrimSpace(kind) == "text"
			continue
		}
		if !block.open {
			for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
				span := strings.ReplaceAll(m[1], `\|`, "…") // a choice, in a table
				if found, err := calls(where, span, program, false); err != nil {
					return nil, err
				} else {
					out = append(out, found...)
				}
			}
			continue
		}
		if block.drawing {
			continue
		}
		if block.pending == "" && block.console {
			if !prompt.MatchString(line) {
				continue
			}
			line = prompt.ReplaceAllString(line, "")
		}
		line = block.pending + strings.TrimSpace(line)
		block.pending = ""
		if head, more := strings.CutSuffix(line, `\`); more {
			block.pending = head
			continue
		}
		found, err := calls(where, line, program, true)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// calls finds the calls of program in a line of a shell.
func calls(where, line, program string, whole bool) ([]Command, error) {
	if !strings.Contains(line, program) {
		return nil, nil
	}
	line = strings.TrimPrefix(line, "ExecStart=")
	parts, err := shellWords(line)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	var out []Command
	for _, words := range parts {
		for len(words) > 0 && (assignment.MatchString(words[0]) || words[0] == "sudo" || words[0] == "watch") {
			words = words[1:]
		}
		if len(words) > 0 && (words[0] == program || strings.HasSuffix(words[0], "/"+program)) {
			out = append(out, Command{Where: where, Args: words[1:], Whole: whole})
		}
	}
	return out, nil
}

// shellWords splits a line into the words of its commands, as a shell does without expansion.
func shellWords(line string) (commands [][]string, err error) {
	var words []string
	var word strings.Builder
	inWord := false
	var quote rune
	endWord := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		commands, words = append(commands, words), nil
	}
scan:
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == '#' && !inWord:
			break scan
		case strings.ContainsRune(" \t", r):
			endWord()
		case strings.ContainsRune("|;&()<>", r):
			endCommand()
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed: %s", line)
	}
	endCommand()
	return commands, nil
}

// manual are the pages that people copy commands from. CHANGELOG.md is none: it names commands that are gone.
var manual = []string{"ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "*/DESIGN.md", "bench/*.md", "docs/*.md",
	"docs/ops/*.md", "docs/formats/*.md", "examples/*.md"}

// CheckManual compares the calls of a program in the pages of manual with its tree of commands, which newRoot
// makes again for each call: the command and its flags exist, and in a code block the values and arguments are
// valid. n counts the calls.
func CheckManual(root string, newRoot func() *cobra.Command) (n int, wrong []string, err error) {
	return checkCalls(root, newRoot().Name(), func(c Command) error { return c.check(newRoot()) })
}

// makeTarget is a rule of a Makefile.
var makeTarget = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*)\s*:(?:[^=]|$)`)

// CheckMake is CheckManual for make: every target in the pages is a rule of the Makefile.
func CheckMake(root string) (n int, wrong []string, err error) {
	b, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return 0, nil, err
	}
	targets := make(map[string]bool)
	for _, m := range makeTarget.FindAllStringSubmatch(string(b), -1) {
		targets[m[1]] = true
	}
	return checkCalls(root, "make", func(c Command) error {
		for _, arg := range c.Args {
			if !strings.ContainsAny(arg, "=…") && !strings.HasPrefix(arg, "-") && !targets[arg] {
				return fmt.Errorf("the Makefile has no target %s", arg)
			}
		}
		return nil
	})
}

// checkCalls calls check with each call of program in the pages of manual.
func checkCalls(root, program string, check func(Command) error) (n int, wrong []string, err error) {
	for _, pattern := range manual {
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return 0, nil, err
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				return 0, nil, err
			}
			found, err := Commands(page, string(text), program)
			if err != nil {
				return 0, nil, err
			}
			for _, c := range found {
				n++
				if err := check(c); err != nil {
					wrong = append(wrong, fmt.Sprintf("%s: %s %s: %v", c.Where, program, strings.Join(c.Args, " "), err))
				}
			}
		}
	}
	return n, wrong, nil
}

func (c Command) check(root *cobra.Command) error {
	cmd, rest, err := root.Find(c.Args)
	if err != nil {
		return err
	}
	if cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !strings.ContainsAny(rest[0], "…[") {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), rest[0])
	}
	cmd.InitDefaultHelpFlag()
	if c.Whole {
		if err := cmd.ParseFlags(rest); err != nil {
			return err
		}
		return cmd.ValidateArgs(cmd.Flags().Args())
	}
	for _, arg := range rest {
		name, long := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		if long && cmd.Flags().Lookup(name) == nil && cmd.InheritedFlags().Lookup(name) == nil {
			return fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), name)
		}
	}
	return nil
}
