package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/quota"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/data/request"
)

// probes are the paths for clients without a certificate: a kubelet cannot present one.
var probes = []string{"/livez", "/readyz"}

// handler serves POST /v1/score, GET /livez, /readyz and /metrics.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/score", s.scoreHTTP)
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.TLS == nil: // plaintext is on loopback only
		case len(r.TLS.PeerCertificates) > 0:
			if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
				quota.Authenticate(c)
			}
		case !slices.Contains(probes, r.URL.Path):
			w.Header().Set("Connection", "close")
			writeError(w, &rowraft.DeniedError{What: r.URL.Path, Need: certs.Join(certs.Roles),
				Have: "none: there is no certificate"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) scoreHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	text, err := s.scoreBody(w, r)
	s.metrics.request("http", err, time.Since(begun))
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
}

// scoreBody returns the text of the answer.
func (s *Server) scoreBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.TLS != nil {
		caller, err := callerOf(r.TLS.PeerCertificates[0])
		if err == nil {
			err = s.mayScore(caller)
		}
		if err != nil {
			return nil, err
		}
	}
	ctx := r.Context()
	if text := r.URL.Query().Get("timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "timeout %q: want a time such as 50ms", text)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	asText := false
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind {
	case "", "application/json", "application/x-www-form-urlencoded": // the last one is curl's default
	case "text/csv", "text/plain", "text/tab-separated-values":
		asText = true
	default:
		return nil, httpError{http.StatusUnsupportedMediaType, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"content type %s: want application/json or text/csv", kind)}
	}
	most, size := s.cfg.Limits.Bytes, r.ContentLength
	if size > most {
		return nil, s.tooLarge()
	}
	if size < 0 {
		size = most
	}
	if err := s.bytes.take(size); err != nil {
		return nil, err
	}
	defer s.bytes.give(size)
	body, err := readBody(http.MaxBytesReader(w, r.Body, most), r.ContentLength)
	if err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return nil, s.tooLarge()
		}
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "read the request: %w", err)
	}
	scores, err := s.score(ctx, func(p *request.Parser) (*data.Batch, error) {
		if asText {
			return p.Text(body, s.cfg.Limits.Examples)
		}
		return p.JSON(body, s.cfg.Limits.Examples)
	})
	if err != nil {
		return nil, err
	}
	return answer(scores, s.scorer.Tasks()), nil
}

// readBody reads a body of size bytes, -1: not known.
func readBody(from io.Reader, size int64) ([]byte, error) {
	if size < 0 {
		return io.ReadAll(from)
	}
	body := make([]byte, size)
	_, err := io.ReadFull(from, body)
	return body, err
}

func (s *Server) tooLarge() error {
	return httpError{http.StatusRequestEntityTooLarge, rowraft.Errorf(rowraft.CodeInvalidArgument,
		"a request of more than %d bytes: send its examples in several requests", s.cfg.Limits.Bytes)}
}

// answer returns {"predictions": […]} with a number for each example, or a list if the model has several tasks.
func answer(scores []float32, tasks int) []byte {
	out := append(make([]byte, 0, 32+12*len(scores)), `{"predictions": [`...)
	for i, v := range scores {
		if i > 0 {
			out = append(out, ", "...)
		}
		if tasks > 1 && i%tasks == 0 {
			out = append(out, '[')
		}
		if x := float64(v); math.IsNaN(x) || math.IsInf(x, 0) { // JSON has no such number
			out = append(out, "null"...)
		} else {
			out = strconv.AppendFloat(out, x, 'g', -1, 32)
		}
		if tasks > 1 && i%tasks == tasks-1 {
			out = append(out, ']')
		}
	}
	return append(out, "]}\n"...)
}

// httpError is an error with a status of its own.
type httpError struct {
	status int
	error
}

func (e httpError) Unwrap() error { return e.error }

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	if e, ok := errors.AsType[httpError](err); ok {
		return e.status
	}
	switch rowraft.CodeOf(err) {
	case rowraft.CodeInvalidArgument:
		return http.StatusBadRequest
	case rowraft.CodeDenied:
		return http.StatusForbidden
	case rowraft.CodeOverloaded:
		return http.StatusTooManyRequests
	case rowraft.CodeDeadline:
		return http.StatusGatewayTimeout
	}
	if rowraft.CodeOf(err).Retryable() {
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// writeError writes {"error": {"code": …, "message": …, "retryable": …}}.
func writeError(w http.ResponseWriter, err error) {
	var e struct {
		Error struct {
			Code      string `json:"code"`
			Message   string `json:"message"`
			Retryable bool   `json:"retryable"`
		} `json:"error"`
	}
	code := rowraft.CodeOf(err)
	e.Error.Code, e.Error.Message, e.Error.Retryable = code.String(), rpc.CleanText(err.Error()), code.Retryable()
	text, _ := json.Marshal(e) // it has only texts
	wait := time.Second
	if o, ok := errors.AsType[*rowraft.OverloadedError](err); ok {
		wait = max(o.RetryAfter, wait)
	}
	status := statusOf(err)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}
