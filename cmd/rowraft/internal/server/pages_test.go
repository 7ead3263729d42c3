package server

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// TestPagesOfAServer: what its configuration is, without the secrets in it, and what it
// has logged last, as JSON whatever the log itself is.
func TestPagesOfAServer(t *testing.T) {
	var f serverFlags
	fl := pflag.NewFlagSet("server", pflag.ContinueOnError)
	f.processFlags(fl)
	if err := fl.Parse([]string{"--name", "n1", "--token", "hush", "--token-file", "/etc/token", "--log-format", "text",
		"--log-level", "warn"}); err != nil {
		t.Fatal(err)
	}
	f.effective = configPage(fl)
	log, err := f.logger(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	log.With("self", "n1").Warn("the disk is slow", "took", "3s")
	log.Info("not requested")
	page := func(name string) string {
		var b strings.Builder
		if err := f.pages()[name](&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	config := page("config")
	for _, line := range []string{"name: \"n1\"  # given\n", "token: \"(not shown)\"  # given\n",
		"token-file: \"/etc/token\"  # given\n", "profile: \"auto\"\n"} {
		if !strings.Contains(config, line) {
			t.Errorf("the configuration lacks %q:\n%s", line, config)
		}
	}
	if strings.Contains(config, "hush") {
		t.Errorf("the configuration tells the token:\n%s", config)
	}
	var parsed map[string]string
	if err := yaml.Unmarshal([]byte(config), &parsed); err != nil || parsed["name"] != "n1" {
		t.Errorf("it is no YAML: %v", err)
	}
	if text := page("log"); !strings.Contains(text, `"msg":"the disk is slow","self":"n1","took":"3s"`) ||
		strings.Contains(text, "not requested") {
		t.Errorf("the log has %q", text)
	}
}
