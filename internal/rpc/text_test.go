package rpc

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// evil forges a log line, clears a terminal, and turns the direction of what follows.
const evil = "w0\nlevel=INFO msg=\"all is well\"\x1b[2J\u202e"

// requests are the types of all requests of all calls.
func requests(t *testing.T) (out map[string]protoreflect.MessageDescriptor) {
	t.Helper()
	out = make(map[string]protoreflect.MessageDescriptor)
	protoregistry.GlobalFiles.RangeFilesByPackage("rowraft.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for k := range s.Methods().Len() {
				m := s.Methods().Get(k)
				out["/"+string(s.FullName())+"/"+string(m.Name())] = m.Input()
			}
		}
		return true
	})
	if len(out) < 50 {
		t.Fatalf("%d calls", len(out))
	}
	return out
}

// withText calls f with messages of a type each of which has one string, in each place where there can be one.
func withText(d protoreflect.MessageDescriptor, depth int, f func(field protoreflect.FieldDescriptor, m *dynamicpb.Message)) {
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		put := func(field protoreflect.FieldDescriptor, v protoreflect.Value) {
			m := dynamicpb.NewMessage(d)
			if fd.IsList() {
				m.Mutable(fd).List().Append(v)
			} else {
				m.Set(fd, v)
			}
			f(field, m)
		}
		switch {
		case fd.Kind() == protoreflect.StringKind:
			put(fd, protoreflect.ValueOfString(evil))
		case fd.Kind() == protoreflect.MessageKind && depth > 0:
			withText(fd.Message(), depth-1, func(field protoreflect.FieldDescriptor, inner *dynamicpb.Message) {
				put(field, protoreflect.ValueOfMessage(inner))
			})
		}
	}
}

// No string of any request reaches a log or a terminal as it came: names are refused, sentences cleaned. The calls of
// the data plane, which are not looked through, have none.
func TestNoRequestCarriesControlCharacters(t *testing.T) {
	refused, cleaned := 0, 0
	for call, d := range requests(t) {
		withText(d, 4, func(field protoreflect.FieldDescriptor, m *dynamicpb.Message) {
			if bare(call) {
				t.Errorf("%s has the string %s, and is not looked through", call, field.FullName())
				return
			}
			err := checkTexts(m)
			if freeText[field.Name()] {
				if text, _ := proto.Marshal(m); err != nil || strings.ContainsAny(string(text), "\n\x1b") && strings.Contains(string(text), evil) {
					t.Errorf("%s: %s: %v, not cleaned", call, field.FullName(), err)
				}
				cleaned++
				return
			}
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), string(field.FullName())) || CheckText(err.Error()) != nil {
				t.Errorf("%s: %s: %v, want a refusal that can be printed", call, field.FullName(), err)
			}
			refused++
		})
	}
	if refused < 50 || cleaned < 2 {
		t.Errorf("%d strings refused, %d cleaned", refused, cleaned)
	}
}

// What a server answers cannot reach the terminal either.
func TestRepliesAreCleaned(t *testing.T) {
	r := &rowraftv1.ListJobsReply{Jobs: []*rowraftv1.JobInfo{{Job: "ctr", Reason: evil, Members: []*rowraftv1.MemberInfo{{Member: &rowraftv1.RunMember{Worker: evil}}}}}}
	cleanTexts(r)
	want := `w0\nlevel=INFO msg="all is well"\x1b[2J\u202e`
	if got := r.Jobs[0]; got.Reason != want || got.Members[0].Member.Worker != want || got.Job != "ctr" {
		t.Errorf("%v, want %s", got, want)
	}
	if got := CleanLines("one\n\ttwo\x1b\r"); got != "one\n\ttwo"+`\x1b\r` {
		t.Errorf("lines: %q", got)
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "ctr", "worker-1.example:7000", "größe 模型", evil, "\x7f", "\xff\xfe", "\u2028", "\u00a0", strings.Repeat("x", maxTextBytes+1)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ok := CheckText(s) == nil
		if ok != (len(s) <= maxTextBytes && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0) {
			t.Errorf("CheckText(%q): %v", s, CheckText(s))
		}
		if got := CleanText(s); strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 || !utf8.ValidString(got) || ok && got != s {
			t.Errorf("CleanText(%q) = %q", s, got)
		}
	})
}
