package rpc

import (
	"context"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rowraft/rowraft"
)

// maxTextBytes limits each string that a caller sends. Names have lower limits of their own.
const maxTextBytes = 4096

// freeText are the fields with free text, such as the error of a failed trainer. A caller may send any text
// in them, and it is cleaned. Every other string is a name, an address or a path, and is refused if it is
// not printable.
var freeText = map[protoreflect.Name]bool{
	"reason": true, "error": true, "text": true, "fenced": true, "held_back": true, "waiting_for": true, "message": true,
	"what": true, "retention_error": true,
}

// CheckText refuses text that a log line or a terminal must not show unchanged: control and format
// characters, line separators, and bytes that are not UTF-8. Letters, digits, marks, punctuation, symbols
// and spaces are allowed.
func CheckText(s string) error {
	if len(s) > maxTextBytes {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%q… has %d bytes: want at most %d", s[:32], len(s), maxTextBytes)
	}
	if !utf8.ValidString(s) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%q is not UTF-8", s)
	}
	if i := strings.IndexFunc(s, unprintable); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"%q has the character %q, which is not printable: use letters, digits, punctuation and spaces", s, r)
	}
	return nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// CleanText returns s with everything that CheckText refuses as Go escapes. It cuts s at the limit.
func CleanText(s string) string { return escape(s[:min(len(s), maxTextBytes)], "") }

// CleanLines is CleanText for several lines.
func CleanLines(s string) string { return escape(s[:min(len(s), maxTextBytes)], "\n\t") }

// escape returns s with Go escapes for all characters that are not printable and not in keep.
func escape(s, keep string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[i])|0x100, 16)[1:])
		case unicode.IsPrint(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// texts calls f for each string of a message and replaces the string by the result.
func texts(m protoreflect.Message, f func(protoreflect.FieldDescriptor, string) (string, error)) (err error) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		isText, isMessage := fd.Kind() == protoreflect.StringKind, fd.Kind() == protoreflect.MessageKind
		var s string
		switch {
		case fd.IsMap() || !isText && !isMessage: // no rowraft message has a map
		case fd.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				if isMessage {
					err = texts(v.List().Get(i).Message(), f)
				} else if s, err = f(fd, v.List().Get(i).String()); err == nil && s != v.List().Get(i).String() {
					v.List().Set(i, protoreflect.ValueOfString(s))
				}
			}
		case isMessage:
			err = texts(v.Message(), f)
		default:
			if s, err = f(fd, v.String()); err == nil && s != v.String() {
				m.Set(fd, protoreflect.ValueOfString(s))
			}
		}
		return err == nil
	})
	return err
}

// checkTexts refuses a request with a name that is not printable, and cleans its free text.
func checkTexts(m any) error {
	p, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	return texts(p.ProtoReflect(), func(fd protoreflect.FieldDescriptor, s string) (string, error) {
		if freeText[fd.Name()] {
			return CleanText(s), nil
		}
		if err := CheckText(s); err != nil {
			return "", rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: %w", fd.FullName(), err)
		}
		return s, nil
	})
}

// cleanTexts cleans a reply, because the caller prints it.
func cleanTexts(m any) {
	if p, ok := m.(proto.Message); ok {
		_ = texts(p.ProtoReflect(), func(_ protoreflect.FieldDescriptor, s string) (string, error) {
			if utf8.ValidString(s) && strings.IndexFunc(s, unprintable) < 0 {
				return s, nil
			}
			return escape(s, ""), nil
		})
	}
}

// bare reports whether the messages of a call have no strings: those of the data plane, which are not
// searched for strings.
func bare(method string) bool { return strings.HasPrefix(method, "/rowraft.v1.Table/") }

func unaryTexts(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if !bare(info.FullMethod) {
		if err := checkTexts(req); err != nil {
			return nil, err
		}
	}
	return h(ctx, req)
}

// textStream checks the messages that a server stream receives.
type textStream struct{ grpc.ServerStream }

func (s textStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return checkTexts(m)
}

func streamTexts(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if bare(info.FullMethod) {
		return h(srv, stream)
	}
	return h(srv, textStream{stream})
}

func unaryReplyTexts(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, conn, opts...)
	if err == nil && !bare(method) {
		cleanTexts(reply)
	}
	return err
}

// replyStream cleans the messages that a client stream receives.
type replyStream struct{ grpc.ClientStream }

func (s replyStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		cleanTexts(m)
	}
	return err
}

func streamReplyTexts(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, opts...)
	if err != nil || bare(method) {
		return s, err
	}
	return replyStream{s}, nil
}
