package tidy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// oldWords are words that the house style replaces: a sentence with one of them hides its subject.
var oldWords = regexp.MustCompile(`(?i)\b(?:nobody|somebody|everybody|whoever|anew|beside)\b`)

// unswept are the directories that OldWords skips. The list only gets shorter.
var unswept = []string{
	"internal/tidy", // this file names the words
}

// OldWords lists lines of code and documents that use a word of oldWords, but for what is unswept.
func OldWords(root string) ([]string, error) {
	var found []string
	err := eachFile(root, []string{".go", ".md", ".proto", ".sh", "Makefile"}, func(rel string, text []byte) error {
		if slices.Contains(unswept, path.Dir(rel)) {
			return nil
		}
		for i, line := range strings.Split(string(text), "\n") {
			if w := oldWords.FindString(line); w != "" {
				found = append(found, fmt.Sprintf("%s:%d: %q: name the subject (the client, the leader, another job); "+
					`"concurrently with", "next to"; "again"`, rel, i+1, w))
			}
		}
		return nil
	})
	return found, err
}
