package certs

import (
	"crypto/sha256"
	"crypto/x509"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
)

// Role is a set of permissions; package rpc lists the calls of each role.
type Role string

const (
	Admin    Role = "admin"    // tables, restores, and everything that operators and trainers may do
	Operator Role = "operator" // servers, moves, checkpoints; no access to rows
	Trainer  Role = "trainer"  // rows of its tables, training jobs
	Reader   Role = "reader"   // read access to rows of its tables
	Server   Role = "server"   // a server of the cluster
)

// Roles are all roles.
var Roles = []Role{Admin, Operator, Trainer, Reader, Server}

// Identity is the owner of a certificate.
type Identity struct {
	Cluster string // name of the cluster
	Role    Role
	Name    string
	// Tables that a trainer or reader may use: names, or prefixes that end in *.
	Tables []string
}

const scheme = "rowraft"

var (
	clusterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	ownerName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	tableName   = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_.-]{0,127}\*?|\*)$`)
)

// Check returns an error if no certificate can hold id.
func (id *Identity) Check() error {
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
	}
	switch {
	case !clusterName.MatchString(id.Cluster):
		return bad("name of a cluster %q: want up to 63 of a-z, 0-9 and -", id.Cluster)
	case !slices.Contains(Roles, id.Role):
		return bad("role %q: want admin, operator, trainer, reader or server", id.Role)
	case !ownerName.MatchString(id.Name):
		return bad("name %q: want up to 63 letters, digits, _ . or -", id.Name)
	case id.limited() && len(id.Tables) == 0:
		return bad("a %s without tables: name those that it may touch, or * for all", id.Role)
	case !id.limited() && len(id.Tables) > 0:
		return bad("tables are for trainers and readers; %s has the role %s", id.Name, id.Role)
	}
	for _, t := range id.Tables {
		if !tableName.MatchString(t) {
			return bad("table %q: want a name, a beginning with * behind it, or *", t)
		}
	}
	return nil
}

func (id *Identity) limited() bool { return id.Role == Trainer || id.Role == Reader }

// May reports whether id may use the table with the given name.
func (id *Identity) May(table string) bool {
	return !id.limited() || slices.ContainsFunc(id.Tables, func(t string) bool {
		begin, open := strings.CutSuffix(t, "*")
		return table == t || open && strings.HasPrefix(table, begin)
	})
}

// Everything reports whether id may use every table.
func (id *Identity) Everything() bool { return !id.limited() || slices.Contains(id.Tables, "*") }

func (id *Identity) String() string { return string(id.Role) + " " + id.Name }

// Tag returns the first bytes of every client id of this owner, the same for all its certificates: sessions
// are bound to it (docs/formats/certificate.md).
func (id *Identity) Tag() (tag [8]byte) {
	sum := sha256.Sum256([]byte("rowraft client\x00" + id.Cluster + "\x00" + id.Name))
	return [8]byte(sum[:])
}

// uri returns the identity in the form that a certificate holds.
func (id *Identity) uri() *url.URL {
	return &url.URL{Scheme: scheme, Host: id.Cluster, Path: "/" + string(id.Role) + "/" + id.Name,
		RawQuery: url.Values{"table": id.Tables}.Encode()}
}

// Text returns the identity in the form that a certificate holds; ParseIdentity parses it.
func (id *Identity) Text() string { return id.uri().String() }

// ParseIdentity parses an identity in the form that a certificate holds.
func ParseIdentity(u *url.URL) (Identity, error) {
	bad := func() (Identity, error) {
		return Identity{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "%q is not an identity: want %s://CLUSTER/ROLE/NAME",
			u, scheme)
	}
	role, name, ok := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	if u.Scheme != scheme || !ok || u.User != nil || u.Opaque != "" || u.Fragment != "" {
		return bad()
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil || len(q) > 1 || len(q) == 1 && q["table"] == nil {
		return bad() // an unknown parameter of a later version may be a restriction
	}
	id := Identity{Cluster: u.Host, Role: Role(role), Name: name, Tables: q["table"]}
	return id, id.Check()
}

// Of returns the identity of a certificate.
func Of(cert *x509.Certificate) (Identity, error) {
	var found []*url.URL
	for _, u := range cert.URIs {
		if u.Scheme == scheme {
			found = append(found, u)
		}
	}
	if len(found) != 1 {
		return Identity{}, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"the certificate of %q has %d identities of the form %s://CLUSTER/ROLE/NAME, want one: `rowraft cert` makes "+
				"such certificates", cert.Subject.CommonName, len(found), scheme)
	}
	return ParseIdentity(found[0])
}
