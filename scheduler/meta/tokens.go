package meta

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Limits of join tokens.
const (
	maxTokens     = 64
	maxTokenUses  = 256
	maxTokenNames = 64 // tables
	MinTokenTTL   = time.Minute
	MaxTokenTTL   = 30 * 24 * time.Hour
	minCertLife   = 4 * time.Hour // a connection lives as long as its certificate, and renewal begins with a third left
	maxCertLife   = 366 * 24 * time.Hour
)

// JoinToken is a token with the hash of its secret. It is immutable.
type JoinToken = rowraftv1.MetaToken

// tokenList has the join tokens, by id. It is immutable: a command replaces it.
type tokenList []*JoinToken

func (l tokenList) find(id string) (int, bool) {
	return slices.BinarySearchFunc(l, id, func(t *JoinToken, id string) int {
		return cmp.Compare(t.GetToken().GetId(), id)
	})
}

// CheckToken refuses an invalid token. Every member must get the same result, in every version:
// docs/formats/metadata.md has the rules.
func CheckToken(m *JoinToken) error {
	t := m.GetToken()
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "join token %.16q: "+format, append([]any{t.GetId()}, args...)...)
	}
	role := certs.Role(t.GetRole())
	ttl, life := time.Duration(t.GetExpiresNs()-t.GetCreatedNs()), time.Duration(t.GetValidNs())
	who := certs.Identity{Cluster: "any", Role: role, Name: cmp.Or(t.GetName(), "any"), Tables: t.GetTables()}
	switch {
	case !certs.IsTokenID(t.GetId()) || len(m.GetSecretSha256()) != sha256.Size:
		return bad("an id, or a hash of %d bytes, as no token has", len(m.GetSecretSha256()))
	case role == certs.Admin:
		return bad(
			"a token cannot make an admin: make the certificate with `rowraft cert client --role admin`, where the CA's key is")
	case t.GetName() == "" && role != certs.Server:
		return bad("whose name is a %s to have? Give --name: jobs and sessions belong to names", role)
	case t.GetUses() < 1 || t.GetUses() > maxTokenUses:
		return bad("%d uses: want 1 to %d", t.GetUses(), maxTokenUses)
	case t.GetCreatedNs() > t.GetExpiresNs() || ttl < MinTokenTTL || ttl > MaxTokenTTL:
		return bad("good for %v: want %v to %v", ttl, MinTokenTTL, MaxTokenTTL)
	case life < minCertLife || life > maxCertLife:
		return bad("certificates for %v: want %v to %v", life, minCertLife, maxCertLife)
	case len(t.GetCreatedBy()) > maxNameLength || len(t.GetTables()) > maxTokenNames:
		return bad("%d tables, by %.20q: want at most %d tables, and %d bytes", len(t.GetTables()), t.GetCreatedBy(),
			maxTokenNames, maxNameLength)
	}
	return who.Check()
}

// create adds a token and deletes those that have expired at its creation time.
func (l *tokenList) create(c *rowraftv1.MetaCreateToken) error {
	t := c.GetToken()
	if err := CheckToken(t); err != nil {
		return err
	}
	now := t.GetToken().GetCreatedNs()
	// The time comes from the command: members have no clock of their own to agree on.
	live := slices.DeleteFunc(slices.Clone(*l), func(o *JoinToken) bool { return o.GetToken().GetExpiresNs() <= now })
	switch _, found := l.find(t.GetToken().GetId()); {
	case found:
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "there is a join token %s already", t.GetToken().GetId())
	case len(t.GetToken().GetUsed()) > 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "join token %s: a new token must list no uses",
			t.GetToken().GetId())
	case len(live) >= maxTokens:
		return rowraft.Errorf(rowraft.CodeOverloaded,
			"there are %d join tokens, the limit: delete one, or wait until one expires", maxTokens)
	}
	*l = live
	i, _ := l.find(t.GetToken().GetId())
	*l = slices.Insert(*l, i, t)
	return nil
}

// use records a use. Repeated uses by the same key count once.
func (l *tokenList) use(c *rowraftv1.MetaUseToken) error {
	i, found := l.find(c.GetId())
	use := c.GetUse()
	switch {
	case !found:
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no join token %.16q", c.GetId())
	case len(use.GetKey()) != sha256.Size || len(use.GetName()) > maxNameLength:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "join token %s: a key's hash of %d bytes, a name of %d", c.GetId(),
			len(use.GetKey()), len(use.GetName()))
	}
	t := (*l)[i].GetToken()
	again := slices.ContainsFunc(t.GetUsed(), func(u *rowraftv1.JoinUse) bool {
		return string(u.GetKey()) == string(use.GetKey())
	})
	switch {
	case use.GetAtNs() >= t.GetExpiresNs():
		return rowraft.Errorf(rowraft.CodePrecondition, "join token %s has expired", c.GetId())
	case t.GetName() != "" && t.GetName() != use.GetName():
		return rowraft.Errorf(rowraft.CodePrecondition, "join token %s is for %s, not for %s", c.GetId(), t.GetName(),
			use.GetName())
	// The machine lost the reply and asks again with the same key. It gets a certificate again and uses up nothing.
	case again:
		return nil
	case len(t.GetUsed()) >= int(t.GetUses()):
		return rowraft.Errorf(rowraft.CodePrecondition, "join token %s is used up", c.GetId())
	}
	next := proto.CloneOf((*l)[i])
	next.Token.Used = append(next.Token.Used, use)
	*l = slices.Clone(*l)
	(*l)[i] = next
	return nil
}

func (l *tokenList) remove(id string) error {
	i, found := l.find(id)
	if !found {
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no join token %.16q", id)
	}
	*l = slices.Delete(slices.Clone(*l), i, i+1)
	return nil
}

// load takes the tokens of a snapshot and checks them.
func (l *tokenList) load(p *rowraftv1.MetaState) error {
	*l = p.GetTokens()
	for i, t := range *l {
		if err := CheckToken(t); err != nil {
			return err
		}
		if i > 0 && (*l)[i-1].GetToken().GetId() >= t.GetToken().GetId() {
			return fmt.Errorf("join tokens are out of order")
		}
		used := t.GetToken().GetUsed()
		if len(used) > int(t.GetToken().GetUses()) || slices.ContainsFunc(used, func(u *rowraftv1.JoinUse) bool {
			return len(u.GetKey()) != sha256.Size || len(u.GetName()) > maxNameLength
		}) {
			return fmt.Errorf("join token %s has uses that it cannot have", t.GetToken().GetId())
		}
	}
	if len(*l) > maxTokens {
		return fmt.Errorf("%d join tokens", len(*l))
	}
	return nil
}

// Tokens returns all tokens by id.
func (m *Machine) Tokens() []*JoinToken {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.tokens // never changed in place
}

// TokenOf returns the token with this id and secret, nil if there is none. It takes the same time for an unknown id as
// for a wrong secret, so that a caller cannot find out which ids exist.
func (m *Machine) TokenOf(id string, secret []byte) *rowraftv1.JoinToken {
	var none [sha256.Size]byte
	want, token := none[:], (*rowraftv1.JoinToken)(nil)
	for _, t := range m.Tokens() {
		if t.GetToken().GetId() == id {
			want, token = t.GetSecretSha256(), t.GetToken()
		}
	}
	got := certs.TokenHash(id, secret)
	if subtle.ConstantTimeCompare(got[:], want) != 1 {
		return nil
	}
	return token
}
