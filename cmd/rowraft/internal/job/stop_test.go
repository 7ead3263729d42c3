package job

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Who has not left when the time is up is named.
func TestAStopThatNobodyAnswers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the time is up
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	_, err := awaitStop(ctx, &remote.Flags{Timeout: time.Minute}, cmd, &rowraftv1.JobInfo{
		Job: "ctr",
		Members: []*rowraftv1.MemberInfo{{Member: &rowraftv1.RunMember{Worker: "w0",
			State: rowraftv1.MemberState_MEMBER_STATE_TRAINING}}},
	})
	if rowraft.CodeOf(err) != rowraft.CodeDeadline ||
		!strings.Contains(err.Error(), "job ctr: no answer within 1m0s from w0 (rank 0); `rowraft job describe ctr`") {
		t.Error(err)
	}
}
