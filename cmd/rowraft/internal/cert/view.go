package cert

import (
	"crypto/x509"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
)

// Certificate is a certificate for text and JSON output.
type Certificate struct {
	Schema  string    `json:"schema"`
	File    string    `json:"file"`
	Cluster string    `json:"cluster"`
	Role    string    `json:"role"` // "ca": a CA; "": a certificate without identity
	Name    string    `json:"name"`
	Tables  []string  `json:"tables"`
	Hosts   []string  `json:"hosts"`
	Serial  string    `json:"serial"`
	Begins  time.Time `json:"begins"`
	Expires time.Time `json:"expires"`
}

func viewOf(cert *x509.Certificate, file string) Certificate {
	v := Certificate{
		Schema: cli.JSONSchema, File: file, Name: cert.Subject.CommonName, Tables: []string{},
		Hosts:  append([]string{}, cert.DNSNames...),
		Serial: fmt.Sprintf("%x", cert.SerialNumber), Begins: cert.NotBefore.UTC(), Expires: cert.NotAfter.UTC(),
	}
	for _, ip := range cert.IPAddresses {
		v.Hosts = append(v.Hosts, ip.String())
	}
	if cert.IsCA {
		v.Role, v.Cluster = "ca", certs.ClusterOfCA(cert)
	} else if id, err := certs.Of(cert); err == nil {
		v.Role, v.Cluster, v.Name, v.Tables = string(id.Role), id.Cluster, id.Name, append(v.Tables, id.Tables...)
	}
	return v
}

func (v *Certificate) expired() bool { return time.Now().After(v.Expires) }

func printCerts(w io.Writer, wide bool, all []Certificate) error {
	header := []string{"ROLE", "NAME", "CLUSTER", "TABLES", "HOSTS", "EXPIRES", "FILE"}
	t := cli.NewTable(w, wide, header).OnlyWide("CLUSTER", "HOSTS")
	for _, v := range all {
		left := time.Until(v.Expires)
		expires := fmt.Sprintf("%s (in %s)", v.Expires.Format(time.DateOnly), cli.Plural(int(left/Day), "day"))
		if v.expired() {
			expires = v.Expires.Format(time.DateOnly) + " (EXPIRED)"
		}
		t.AppendRow(table.Row{view.Dash(v.Role), v.Name, view.Dash(v.Cluster), view.Dash(strings.Join(v.Tables, ",")),
			view.Dash(strings.Join(v.Hosts, ",")), expires, v.File})
	}
	t.Render()
	return nil
}
