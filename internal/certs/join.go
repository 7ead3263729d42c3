package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
)

// Limits for the request of a joining machine.
const (
	MaxJoinRequestBytes = 8 << 10
	maxJoinHosts        = 16
)

var hostName = regexp.MustCompile(
	`^[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?)*$`)

// NewRequest creates a request for a certificate (PKCS #10, DER) for a machine without one. It creates the
// key in f.Key, mode 0600, or uses the existing key. The key never leaves the machine.
func (f Files) NewRequest(name string, hosts []string) ([]byte, error) {
	key, err := f.joinKey()
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}
	template.IPAddresses, template.DNSNames = divide(hosts)
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "create a certificate request: %w", err)
	}
	if _, err := ParseRequest(der); err != nil {
		return nil, err
	}
	return der, nil
}

// joinKey returns the key that an earlier attempt created, or a new one: a token is used only once by a
// machine that sends several requests with the same key.
func (f Files) joinKey() (*ecdsa.PrivateKey, error) {
	for {
		if _, err := os.Stat(f.Key); err == nil {
			return readKey(f.Key)
		}
		if err := os.MkdirAll(filepath.Dir(f.Key), 0o700); err != nil {
			return nil, fmt.Errorf("directory of the certificate: %w", err)
		}
		key, der, err := newKey()
		if err != nil {
			return nil, err
		}
		switch err := write(f.Key, keyPEM, der); {
		case rowraft.CodeOf(err) == rowraft.CodeAlreadyExists: // another process created it at the same time
		case err != nil:
			return nil, err
		default:
			return key, nil
		}
	}
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	block, err := readPEM(path)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "key %s: %w", path, err)
	}
	return key, nil
}

// Asked is the content of the request of a joining machine.
type Asked struct {
	Name  string // empty: the name in the token
	Hosts []string
	Key   *ecdsa.PublicKey
}

// ParseRequest parses the result of NewRequest and verifies that the sender has the key. It ignores all
// other content.
func ParseRequest(der []byte) (*Asked, error) {
	bad := func(format string, args ...any) (*Asked, error) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "request for a certificate: "+format, args...)
	}
	if len(der) > MaxJoinRequestBytes {
		return bad("%d bytes, want at most %d", len(der), MaxJoinRequestBytes)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return bad("%w", err)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return bad("want a key of the curve P-256")
	}
	if err := r.CheckSignature(); err != nil {
		return bad("%w", err)
	}
	a := &Asked{Name: r.Subject.CommonName, Key: key}
	for _, ip := range r.IPAddresses {
		a.Hosts = append(a.Hosts, ip.String())
	}
	a.Hosts = append(a.Hosts, r.DNSNames...)
	if a.Name != "" && !ownerName.MatchString(a.Name) {
		return bad("name %.80q: want up to 63 letters, digits, _ . or -", a.Name)
	}
	if len(a.Hosts) > maxJoinHosts {
		return bad("%d addresses, want at most %d", len(a.Hosts), maxJoinHosts)
	}
	for _, h := range a.Hosts {
		if net.ParseIP(h) == nil && (len(h) > 253 || !hostName.MatchString(h)) {
			return bad("address %.80q", h)
		}
	}
	return a, nil
}

// Keep stores the certificate that a machine received when it joined or renewed. The certificate replaces
// the old one in one step and must belong to the key of f. An existing CA file stays, because it belongs to
// the operator.
func (f Files) Keep(certificate, ca []byte) error {
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the received certificate: %w", err)
	}
	key, err := readKey(f.Key)
	if err != nil {
		return err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the received certificate is not for the key in %s", f.Key)
	}
	if _, err := os.Stat(f.CA); errors.Is(err, fs.ErrNotExist) {
		if !x509.NewCertPool().AppendCertsFromPEM(ca) {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "the received CA contains no certificate")
		}
		if err := replace(f.CA, ca); err != nil {
			return err
		}
	}
	return replace(f.Cert, pem.EncodeToMemory(&pem.Block{Type: certPEM, Bytes: certificate}))
}

// replace replaces a file in one step; only its owner can read it.
func replace(path string, content []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = temp.Write(content)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(temp.Name())))
	}
	return nil
}

// OpenKey opens the CA whose key is in the file path. The key selects the certificate in the file ca.
func OpenKey(path, ca string) (*CA, error) {
	key, err := readKey(path)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(ca)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "CA certificate: %w", err)
	}
	for _, cert := range parseAll(raw) {
		if cert.IsCA && key.PublicKey.Equal(cert.PublicKey) {
			return &CA{Cluster: ClusterOfCA(cert), Cert: cert, dir: filepath.Dir(ca), key: key}, nil
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the key %s belongs to none of the CAs in %s", path, ca)
}

// parseAll returns the valid certificates in a PEM file.
func parseAll(raw []byte) (out []*x509.Certificate) {
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == certPEM {
			out = append(out, cert)
		}
	}
	return out
}

// Sign creates the certificate of r for a joining machine and returns its DER. The certificate ends with
// the CA if it would outlive it.
func (ca *CA) Sign(r Request, key *ecdsa.PublicKey) ([]byte, error) {
	template, err := ca.template(&r)
	if err != nil {
		return nil, err
	}
	return ca.signFor(template, key, r.Valid)
}

// Renew creates a new certificate with the identity and the duration of an old one of this CA.
//
// Errors: CodeInvalidArgument, also if old is from another CA or has a key type that rowraft does not create.
func (ca *CA) Renew(old *x509.Certificate) ([]byte, error) {
	key, ok := old.PublicKey.(*ecdsa.PublicKey)
	if err := old.CheckSignatureFrom(ca.Cert); err != nil || !ok {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"the certificate of %s was not issued by this CA (%s): issue a new one in the same way as the old one",
			old.Subject.CommonName, ca.Cert.Subject.CommonName)
	}
	template := &x509.Certificate{
		Subject: old.Subject, URIs: old.URIs, IPAddresses: old.IPAddresses, DNSNames: old.DNSNames, KeyUsage: old.KeyUsage,
		ExtKeyUsage: old.ExtKeyUsage,
	}
	return ca.signFor(template, key, max(old.NotAfter.Sub(old.NotBefore)-backdate, time.Minute))
}

// DueForRenewal reports whether two thirds of the validity of a certificate have passed.
func DueForRenewal(cert *x509.Certificate, now time.Time) bool {
	return cert.NotAfter.Sub(now) < cert.NotAfter.Sub(cert.NotBefore)/3
}

func (ca *CA) signFor(template *x509.Certificate, key *ecdsa.PublicKey, valid time.Duration) ([]byte, error) {
	template.NotBefore = time.Now()
	if left := ca.Cert.NotAfter.Sub(template.NotBefore); valid > left {
		valid = left
	}
	if valid <= 0 {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the CA expired at %s: create a new one",
			ca.Cert.NotAfter.Format(time.RFC3339))
	}
	return complete(template, ca.Cert, key, ca.key, valid)
}

// divide separates addresses from names.
func divide(hosts []string) (ips []net.IP, names []string) {
	for _, h := range hosts {
		if ip := net.ParseIP(strings.Trim(h, "[]")); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, h)
		}
	}
	return ips, names
}
