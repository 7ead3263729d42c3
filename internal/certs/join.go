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

// Limits of what a machine that joins may ask for.
const (
	MaxJoinRequestBytes = 8 << 10
	maxJoinHosts        = 16
)

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?)*$`)

// NewRequest makes the key of a machine that has no certificate yet, in files.Key, 0600,
// or takes the one that is there, and asks with it for a certificate (PKCS #10, DER).
// The key never leaves the machine.
func (f Files) NewRequest(name string, hosts []string) ([]byte, error) {
	key, err := f.joinKey()
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}
	template.IPAddresses, template.DNSNames = divide(hosts)
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "ask for a certificate: %w", err)
	}
	if _, err := ParseRequest(der); err != nil {
		return nil, err
	}
	return der, nil
}

// joinKey is the key that a first try left behind, or a new one: who asks again with the
// same key uses a token once.
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
		case rowraft.CodeOf(err) == rowraft.CodeAlreadyExists: // by another process, just now
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

// Asked is what a machine asks for when it joins.
type Asked struct {
	Name  string // "": as the token says
	Hosts []string
	Key   *ecdsa.PublicKey
}

// ParseRequest reads what NewRequest made, and proves that who asks has the key. Whatever
// else stands in it is passed over.
//
// Errors: CodeInvalidArgument.
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

// Keep writes what a machine got when it joined, or when it renewed: the certificate
// replaces the one that is there in one step, and belongs to the key of f. A CA that is
// there stays: it is the operator's.
func (f Files) Keep(certificate, ca []byte) error {
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the certificate that came: %w", err)
	}
	key, err := readKey(f.Key)
	if err != nil {
		return err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the certificate that came is for another key than %s", f.Key)
	}
	if _, err := os.Stat(f.CA); errors.Is(err, fs.ErrNotExist) {
		if !x509.NewCertPool().AppendCertsFromPEM(ca) {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "the CA that came holds no certificate")
		}
		if err := replace(f.CA, ca); err != nil {
			return err
		}
	}
	return replace(f.Cert, pem.EncodeToMemory(&pem.Block{Type: certPEM, Bytes: certificate}))
}

// replace writes a file of its owner's in one step.
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

// OpenKey is the CA whose key is in a file; which of the certificates in the file ca it
// is, the key tells.
//
// Errors: CodeInvalidArgument.
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
	return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the key %s is of none of the CAs in %s", path, ca)
}

// parseAll returns the certificates in a PEM file that can be read.
func parseAll(raw []byte) (out []*x509.Certificate) {
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == certPEM {
			out = append(out, cert)
		}
	}
	return out
}

// Sign gives a machine that asked the certificate of r, which ends with the CA if it
// would outlive it, and returns its DER.
//
// Errors: CodeInvalidArgument.
func (ca *CA) Sign(r Request, key *ecdsa.PublicKey) ([]byte, error) {
	template, err := ca.template(&r)
	if err != nil {
		return nil, err
	}
	return ca.signFor(template, key, r.Valid)
}

// Renew gives the owner of a certificate of this CA the same one anew, valid as long.
//
// Errors: CodeInvalidArgument, also for one that a person would not call a renewal: of
// another CA, or of a key that rowraft did not make.
func (ca *CA) Renew(old *x509.Certificate) ([]byte, error) {
	key, ok := old.PublicKey.(*ecdsa.PublicKey)
	if err := old.CheckSignatureFrom(ca.Cert); err != nil || !ok {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the certificate of %s was not made by this CA (%s): make a new one as the old one was made", old.Subject.CommonName, ca.Cert.Subject.CommonName)
	}
	template := &x509.Certificate{
		Subject: old.Subject, URIs: old.URIs, IPAddresses: old.IPAddresses, DNSNames: old.DNSNames, KeyUsage: old.KeyUsage, ExtKeyUsage: old.ExtKeyUsage,
	}
	return ca.signFor(template, key, max(old.NotAfter.Sub(old.NotBefore)-backdate, time.Minute))
}

// DueForRenewal reports whether two thirds of a certificate's time are over.
func DueForRenewal(cert *x509.Certificate, now time.Time) bool {
	return cert.NotAfter.Sub(now) < cert.NotAfter.Sub(cert.NotBefore)/3
}

func (ca *CA) signFor(template *x509.Certificate, key *ecdsa.PublicKey, valid time.Duration) ([]byte, error) {
	template.NotBefore = time.Now()
	if left := ca.Cert.NotAfter.Sub(template.NotBefore); valid > left {
		valid = left
	}
	if valid <= 0 {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the CA has expired at %s", ca.Cert.NotAfter.Format(time.RFC3339))
	}
	return complete(template, ca.Cert, key, ca.key, valid)
}

// divide tells addresses from names.
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
