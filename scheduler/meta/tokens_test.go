package meta

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	testTokenID = "0123456789abcdef"
	second      = uint64(time.Second)
)

// testToken is that of the golden files, changed.
func testToken(change func(*JoinToken)) *JoinToken {
	m := &JoinToken{Token: &rowraftv1.JoinToken{
		Id: testTokenID, Role: "server", Uses: 2, CreatedNs: 1000 * second, ExpiresNs: 4600 * second,
		ValidNs: uint64(24 * time.Hour), CreatedBy: "admin ann",
	}, SecretSha256: upTo(0, 32)}
	if change != nil {
		change(m)
	}
	return m
}

// upTo are the bytes from … to-1.
func upTo(from, to int) (b []byte) {
	for i := from; i < to; i++ {
		b = append(b, byte(i))
	}
	return b
}

func cmdCreateToken(m *JoinToken) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateToken{
		CreateToken: &rowraftv1.MetaCreateToken{Token: m}}}
}

// cmdUseToken is a use by the machine with the key-th key, at a second.
func cmdUseToken(name string, key int, at uint64) *rowraftv1.MetaCommand {
	use := &rowraftv1.JoinUse{Name: name, AtNs: at * second, Key: upTo(32*key, 32*key+32)}
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_UseToken{
		UseToken: &rowraftv1.MetaUseToken{Id: testTokenID, Use: use}}}
}

func cmdDeleteToken() *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DeleteToken{
		DeleteToken: &rowraftv1.MetaDeleteToken{Id: testTokenID}}}
}

// TestGoldenTokens reads entries and a snapshot of version 12 that testdata/golden.py wrote by
// hand from docs/formats/metadata.md.
func TestGoldenTokens(t *testing.T) {
	m := New(NewView())
	if err := m.state.init("c-1"); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		name string
		cmd  *rowraftv1.MetaCommand
	}{{"create_token", cmdCreateToken(testToken(nil))}, {"use_token", cmdUseToken("n1", 1, 1001)},
		{"delete_token", cmdDeleteToken()}} {
		if result := m.Apply(rowraft.Index(i+2), goldenCommand(t, c.name, c.cmd)); result != nil {
			t.Fatalf("%s: %v", c.name, result)
		}
		if c.name == "use_token" {
			wantSnapshot(t, m, "tokens")
		}
	}
	if left := m.Tokens(); len(left) != 0 {
		t.Errorf("after it was deleted there are %v", left)
	}
}

// TestTokensAreUsedSoOften: a token lets in as many machines as it says, each once, until it
// expires, by the time that stands in the entry.
func TestTokensAreUsedSoOften(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	a.refused(cmdUseToken("n1", 1, 1001), rowraft.CodeNotFound)
	a.refused(cmdDeleteToken(), rowraft.CodeNotFound)
	a.do(cmdCreateToken(testToken(nil)))
	a.refused(cmdCreateToken(testToken(nil)), rowraft.CodeAlreadyExists)
	a.do(cmdUseToken("n1", 1, 1001))
	before := stateBytes(t, a.m)
	if err := a.do(cmdUseToken("n1", 1, 1002)); err != nil || !bytes.Equal(before, stateBytes(t, a.m)) {
		t.Errorf("the same machine again: %v", err)
	}
	a.refused(cmdUseToken("n2", 2, 4600), rowraft.CodePrecondition, "has expired")
	a.do(cmdUseToken("n2", 2, 4599))
	a.refused(cmdUseToken("n3", 3, 4599), rowraft.CodePrecondition, "is used up")
	a.do(cmdUseToken("n1", 1, 4599))
	if used := a.m.Tokens()[0].GetToken().GetUsed(); len(used) != 2 || used[0].GetName() != "n1" ||
		used[1].GetName() != "n2" {
		t.Errorf("used by %v", used)
	}
	// The next one drops it once it has expired, not before.
	other := func(id string, created uint64) *rowraftv1.MetaCommand {
		return cmdCreateToken(testToken(func(m *JoinToken) {
			m.Token.Id, m.Token.CreatedNs, m.Token.ExpiresNs = id, created*second, (created+3600)*second
		}))
	}
	a.do(other("ffffffffffffffff", 4599))
	if n := len(a.m.Tokens()); n != 2 {
		t.Errorf("%d tokens before the first one has expired", n)
	}
	a.do(other("0000000000000000", 4600))
	if all := a.m.Tokens(); len(all) != 2 || all[0].GetToken().GetId() != "0000000000000000" {
		t.Errorf("after it has expired there are %v", all)
	}

	named := newApplier(t)
	named.do(cmdCreateToken(testToken(func(m *JoinToken) { m.Token.Name = "n1" })))
	named.refused(cmdUseToken("n2", 1, 1001), rowraft.CodePrecondition, "is for n1, not for n2")
	named.do(cmdUseToken("n1", 1, 1001))
}

func TestWhatNoTokenCanBe(t *testing.T) {
	a := newApplier(t)
	for name, change := range map[string]func(*JoinToken){
		"its id":         func(m *JoinToken) { m.Token.Id = "0123" },
		"its hash":       func(m *JoinToken) { m.SecretSha256 = upTo(0, 31) },
		"an admin's":     func(m *JoinToken) { m.Token.Role, m.Token.Name = "admin", "ann" },
		"a king's":       func(m *JoinToken) { m.Token.Role, m.Token.Name = "king", "ann" },
		"any trainer's":  func(m *JoinToken) { m.Token.Role, m.Token.Tables = "trainer", []string{"*"} },
		"no table":       func(m *JoinToken) { m.Token.Role, m.Token.Name = "trainer", "tom" },
		"a node's table": func(m *JoinToken) { m.Token.Tables = []string{"*"} },
		"no use":         func(m *JoinToken) { m.Token.Uses = 0 },
		"too many uses":  func(m *JoinToken) { m.Token.Uses = maxTokenUses + 1 },
		"used before":    func(m *JoinToken) { m.Token.Used = []*rowraftv1.JoinUse{{Key: upTo(0, 32)}} },
		"a second":       func(m *JoinToken) { m.Token.ExpiresNs = 1001 * second },
		"backwards":      func(m *JoinToken) { m.Token.ExpiresNs = 999 * second },
		"a year":         func(m *JoinToken) { m.Token.ExpiresNs = 1000*second + uint64(365*24*time.Hour) },
		"a short life":   func(m *JoinToken) { m.Token.ValidNs = uint64(time.Hour) },
		"a long life":    func(m *JoinToken) { m.Token.ValidNs = 1 << 63 },
		"a long name":    func(m *JoinToken) { m.Token.CreatedBy = strings.Repeat("x", 200) },
	} {
		t.Run(name, func(t *testing.T) {
			a.t = t
			a.refused(cmdCreateToken(testToken(change)), rowraft.CodeInvalidArgument)
			bad := &rowraftv1.MetaState{Tokens: []*JoinToken{testToken(change)}}
			if err := new(tokenList).load(bad); (err == nil) != (name == "used before") {
				t.Errorf("in a snapshot: %v", err)
			}
		})
	}
	a.t = t
	for i := range maxTokens {
		a.do(cmdCreateToken(testToken(func(m *JoinToken) {
			m.Token.Id = testTokenID[:14] + string("0123456789abcdef"[i/16]) + string("0123456789abcdef"[i%16])
		})))
	}
	a.refused(cmdCreateToken(testToken(func(m *JoinToken) { m.Token.Id = "ffffffffffffffff" })), rowraft.CodeOverloaded)
	two := &rowraftv1.MetaState{Tokens: []*JoinToken{testToken(nil), testToken(nil)}}
	if err := new(tokenList).load(two); err == nil {
		t.Error("a snapshot with one token twice is read")
	}
	over := testToken(nil)
	over.Token.Used = []*rowraftv1.JoinUse{{Key: upTo(0, 32)}, {Key: upTo(1, 33)}, {Key: upTo(2, 34)}}
	if err := new(tokenList).load(&rowraftv1.MetaState{Tokens: []*JoinToken{over}}); err == nil {
		t.Error("a snapshot with a token that is used too often is read")
	}
}

// TestTokenSecrets: the right id with the right secret, and nothing else.
func TestTokenSecrets(t *testing.T) {
	a := newApplier(t)
	secret := upTo(0, 16)
	hash := certs.TokenHash(testTokenID, secret)
	a.do(cmdCreateToken(testToken(func(m *JoinToken) { m.SecretSha256 = hash[:] })))
	if a.m.TokenOf(testTokenID, secret) == nil {
		t.Error("the right secret is refused")
	}
	for name, got := range map[string]*rowraftv1.JoinToken{
		"another secret": a.m.TokenOf(testTokenID, upTo(1, 17)), "none": a.m.TokenOf(testTokenID, nil),
		"another id": a.m.TokenOf("ffffffffffffffff", secret), "nothing": a.m.TokenOf("", nil),
	} {
		if got != nil {
			t.Errorf("%s opens %v", name, got)
		}
	}
	// What a member told us does not change under us.
	before := a.m.Tokens()[0]
	copied := proto.CloneOf(before)
	a.do(cmdUseToken("n1", 1, 1001))
	if !proto.Equal(before, copied) {
		t.Error("a use changed what was read before it")
	}
}
