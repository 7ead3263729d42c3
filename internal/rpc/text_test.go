package rpc

import (
	"context"
	"net"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// evil forges a log line, clears a terminal, and reverses the direction of the following text.
const evil = "w0\nlevel=INFO msg=\"all is well\"\x1b[2J\u202e"

// requests returns the types of all requests of all calls.
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

// withText calls f with messages of a type, each with one string, in every possible place.
func withText(d protoreflect.MessageDescriptor, depth int,
	f func(field protoreflect.FieldDescriptor, m *dynamicpb.Message)) {
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

// TestNoRequestCarriesControlCharacters: no string of any request reaches a log or a terminal unchecked: names are
// refused, free text is cleaned. The calls of the data plane, which are not searched, have no strings.
func TestNoRequestCarriesControlCharacters(t *testing.T) {
	refused, cleaned := 0, 0
	for call, d := range requests(t) {
		withText(d, 4, func(field protoreflect.FieldDescriptor, m *dynamicpb.Message) {
			if bare(call) {
				t.Errorf("%s has the string %s, and is not searched", call, field.FullName())
				return
			}
			err := checkTexts(m)
			if freeText[field.Name()] {
				if text, _ := proto.Marshal(m); err != nil || strings.ContainsAny(string(text), "\n\x1b") &&
					strings.Contains(string(text), evil) {
					t.Errorf("%s: %s: %v, not cleaned", call, field.FullName(), err)
				}
				cleaned++
				return
			}
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
				!strings.Contains(err.Error(), string(field.FullName())) || CheckText(err.Error()) != nil {
				t.Errorf("%s: %s: %v, want a printable refusal", call, field.FullName(), err)
			}
			refused++
		})
	}
	if refused < 50 || cleaned < 2 {
		t.Errorf("%d strings refused, %d cleaned", refused, cleaned)
	}
}

// Replies of a server cannot reach the terminal unchecked either.
func TestRepliesAreCleaned(t *testing.T) {
	r := &rowraftv1.ListJobsReply{Jobs: []*rowraftv1.JobInfo{{Job: "ctr",
		Reason: evil, Members: []*rowraftv1.MemberInfo{{Member: &rowraftv1.RunMember{Worker: evil}}}}}}
	cleanTexts(r)
	want := `w0\nlevel=INFO msg="all is well"\x1b[2J\u202e`
	if got := r.Jobs[0]; got.Reason != want || got.Members[0].Member.Worker != want || got.Job != "ctr" {
		t.Errorf("%v, want %s", got, want)
	}
	if got := CleanLines("one\n\ttwo\x1b\r\xff"); got != "one\n\ttwo"+`\x1b\r\xff` {
		t.Errorf("lines: %q", got)
	}
	long := &rowraftv1.JobInfo{Reason: strings.Repeat("x", maxTextBytes) + evil}
	if cleanTexts(long); !strings.HasSuffix(long.Reason, "xx"+want) {
		t.Errorf("a long reply ends in %q", long.Reason[maxTextBytes:])
	}
}

// hostileServer replies with text that is not printable, and counts the requests that reach it.
type hostileServer struct {
	rowraftv1.UnimplementedJobsServer
	rowraftv1.UnimplementedCheckpointsServer
	unary, stream int
}

func (s *hostileServer) StopJob(_ context.Context, q *rowraftv1.StopJobRequest) (*rowraftv1.StopJobReply, error) {
	s.unary++
	return &rowraftv1.StopJobReply{}, nil
}

func (s *hostileServer) ListJobs(context.Context, *rowraftv1.ListJobsRequest) (*rowraftv1.ListJobsReply, error) {
	return &rowraftv1.ListJobsReply{Jobs: []*rowraftv1.JobInfo{{Job: evil}}}, nil
}

func (s *hostileServer) Attend(stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		s.stream++
	}
}

func (s *hostileServer) CreateCheckpoint(_ *rowraftv1.CreateCheckpointRequest,
	stream grpc.ServerStreamingServer[rowraftv1.CreateCheckpointReply]) error {
	return stream.Send(&rowraftv1.CreateCheckpointReply{Name: evil})
}

// TestTextsAreCheckedOnTheWay: every server and every client with the options of this package checks what
// it receives, in unary calls and in streams.
func TestTextsAreCheckedOnTheWay(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, s := grpc.NewServer(ServerOptions(nil)...), &hostileServer{}
	rowraftv1.RegisterJobsServer(srv, s)
	rowraftv1.RegisterCheckpointsServer(srv, s)
	served := make(chan error)
	go func() { served <- srv.Serve(lis) }()
	defer func() { srv.Stop(); <-served }()
	conn, err := Dial(lis.Addr().String(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	jobs, checkpoints := rowraftv1.NewJobsClient(conn), rowraftv1.NewCheckpointsClient(conn)

	if _, err := jobs.StopJob(t.Context(),
		&rowraftv1.StopJobRequest{Job: evil}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a name in a call: %v, want a refusal", err)
	}
	attend, err := checkpoints.Attend(t.Context())
	if err == nil {
		err = attend.Send(
			&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Hello{
				Hello: &rowraftv1.AttendHello{Member: &rowraftv1.JobIdentity{Job: evil}}}})
	}
	if err == nil {
		_ = attend.CloseSend()
		_, err = attend.Recv()
	}
	if rowraft.CodeOf(FromStatus(err)) != rowraft.CodeInvalidArgument {
		t.Errorf("a name in a stream: %v, want a refusal", err)
	}
	if list, err := jobs.ListJobs(t.Context(), &rowraftv1.ListJobsRequest{}); err != nil ||
		CheckText(list.Jobs[0].Job) != nil {
		t.Errorf("the reply to a call: %v, %v", list, err)
	}
	create, err := checkpoints.CreateCheckpoint(t.Context(), &rowraftv1.CreateCheckpointRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := create.Recv(); err != nil || CheckText(reply.GetName()) != nil {
		t.Errorf("the reply in a stream: %v, %v", reply, err)
	}
	srv.Stop()
	if s.unary+s.stream > 0 {
		t.Errorf("%d calls and %d messages of streams with control characters reached the server", s.unary, s.stream)
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "ctr", "worker-1.example:7000", "größe 模型", evil, "\x7f", "\xff\xfe", "\u2028",
		"\u00a0", strings.Repeat("x", maxTextBytes+1)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ok := CheckText(s) == nil
		if ok != (len(s) <= maxTextBytes && utf8.ValidString(s) &&
			strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0) {
			t.Errorf("CheckText(%q): %v", s, CheckText(s))
		}
		if got := CleanText(s); strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 ||
			!utf8.ValidString(got) || ok && got != s {
			t.Errorf("CleanText(%q) = %q", s, got)
		}
	})
}
