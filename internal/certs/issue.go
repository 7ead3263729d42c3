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
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft"
)

// caName is the name of the files of a CA in its directory, without extension.
const caName = "ca"

const (
	keyPEM  = "EC PRIVATE KEY"
	certPEM = "CERTIFICATE"
)

// backdate makes a new certificate valid on machines whose clocks are behind.
const backdate = 5 * time.Minute

// CA signs certificates for one cluster.
type CA struct {
	Cluster string
	Cert    *x509.Certificate

	dir string
	key *ecdsa.PrivateKey
}

// NewCA creates the CA of a cluster and writes ca.pem and ca.key to dir, which it creates if necessary.
//
// Errors: CodeAlreadyExists if one of the files exists.
func NewCA(dir, cluster string, valid time.Duration) (*CA, error) {
	if !clusterName.MatchString(cluster) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "name of a cluster %q: want up to 63 of a-z, 0-9 and -",
			cluster)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the CA: %w", err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "rowraft CA of " + cluster},
		URIs:    []*url.URL{{Scheme: scheme, Host: cluster, Path: "/ca"}},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	ca := &CA{Cluster: cluster, dir: dir}
	var err error
	ca.Cert, ca.key, err = sign(filepath.Join(dir, caName), template, nil, nil, valid)
	return ca, err
}

// OpenCA reads the CA in dir.
func OpenCA(dir string) (*CA, error) {
	cert, err := ReadCertificate(filepath.Join(dir, caName+".pem"))
	if err != nil {
		return nil, err
	}
	ca := &CA{Cert: cert, dir: dir}
	if ca.Cluster = ClusterOfCA(cert); ca.Cluster == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s was not made by `rowraft cert ca`: it names no cluster",
			filepath.Join(dir, caName+".pem"))
	}
	ca.key, err = readKey(filepath.Join(dir, caName+".key"))
	return ca, err
}

// ClusterOfCA returns the cluster in the certificate of a CA; empty if it has none.
func ClusterOfCA(cert *x509.Certificate) string {
	for _, u := range cert.URIs {
		if u.Scheme == scheme && u.Path == "/ca" {
			return u.Host
		}
	}
	return ""
}

// Request describes a certificate.
type Request struct {
	Identity
	Hosts []string // names and addresses on which its owner listens
	Valid time.Duration
	// NotBefore; zero: now.
	NotBefore time.Time
}

// Issue creates a certificate and writes base.pem and base.key, with mode 0600, into a directory that it
// creates with mode 0700 if it is missing. The cluster is that of the CA unless the request names another.
//
// Errors: CodeAlreadyExists if one of the files exists; CodeInvalidArgument.
func (ca *CA) Issue(base string, r Request) (Files, error) {
	template, err := ca.template(&r)
	if err != nil {
		return Files{}, err
	}
	if _, _, err := sign(base, template, ca.Cert, ca.key, r.Valid); err != nil {
		return Files{}, err
	}
	return Files{Cert: base + ".pem", Key: base + ".key", CA: filepath.Join(ca.dir, caName+".pem")}, nil
}

// template returns the unsigned certificate for r.
func (ca *CA) template(r *Request) (*x509.Certificate, error) {
	if r.Cluster == "" {
		r.Cluster = ca.Cluster
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: r.Name}, URIs: []*url.URL{r.uri()}, NotBefore: r.NotBefore,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	template.IPAddresses, template.DNSNames = divide(r.Hosts)
	if len(r.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return template, nil
}

// sign creates a key, signs template for it and writes both. Without a parent the certificate signs itself.
func sign(base string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey,
	valid time.Duration) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, keyDER, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, signer = template, key
	}
	der, err := complete(template, parent, &key.PublicKey, signer, valid)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the signed certificate: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(base), 0o700); err != nil {
		return nil, nil, fmt.Errorf("directory of the certificate: %w", err)
	}
	// Write the key first: a certificate without its key is useless.
	if err := write(base+".key", keyPEM, keyDER); err != nil {
		return nil, nil, err
	}
	if err := write(base+".pem", certPEM, der); err != nil {
		return nil, nil, errors.Join(err, os.Remove(base+".key"))
	}
	return cert, key, nil
}

// newKey creates a key and its encoding for a file.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("create a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key: %w", err)
	}
	return key, der, nil
}

// complete sets the fields that differ in every certificate, and signs.
func complete(template, parent *x509.Certificate, key *ecdsa.PublicKey, signer *ecdsa.PrivateKey,
	valid time.Duration) (der []byte, err error) {
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, fmt.Errorf("create a serial number: %w", err)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now()
	}
	template.NotAfter = template.NotBefore.Add(valid)
	template.NotBefore = template.NotBefore.Add(-backdate)
	if parent != template && template.NotAfter.After(parent.NotAfter) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"the certificate would be valid until %s, but the CA is valid until %s: choose a shorter time",
			template.NotAfter.Format(time.DateOnly), parent.NotAfter.Format(time.DateOnly))
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, parent, key, signer); err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return der, nil
}

// write creates a file that only its owner can read. It does not overwrite an existing file.
func write(path, kind string, der []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return rowraft.Errorf(rowraft.CodeAlreadyExists,
			"%s exists and is not overwritten: remove it, or choose another path", path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return errors.Join(pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Sync(), f.Close())
}

// ReadCertificate reads the first certificate of a PEM file.
func ReadCertificate(path string) (*x509.Certificate, error) {
	block, err := readPEM(path)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "certificate %s: %w", path, err)
	}
	return cert, nil
}

func readPEM(path string) (*pem.Block, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "read %s: %w", path, err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s contains no PEM", path)
	}
	return block, nil
}
