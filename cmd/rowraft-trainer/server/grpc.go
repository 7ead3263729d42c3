package server

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	servingv1 "github.com/rowraft/rowraft/proto/rowraft/serving/v1"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/data/request"
)

// scoring implements the gRPC service.
type scoring struct {
	servingv1.UnimplementedScoringServer
	s *Server
}

// Score implements servingv1.ScoringServer.
func (g *scoring) Score(ctx context.Context, req *servingv1.ScoreRequest) (*servingv1.ScoreReply, error) {
	begun := time.Now()
	scores, err := g.score(ctx, req)
	g.s.metrics.request("grpc", err, time.Since(begun))
	if err != nil {
		return nil, err
	}
	return &servingv1.ScoreReply{Predictions: scores, Tasks: uint32(g.s.scorer.Tasks())}, nil
}

func (g *scoring) score(ctx context.Context, req *servingv1.ScoreRequest) ([]float32, error) {
	if err := g.s.mayScore(rpc.CallerOf(ctx)); err != nil {
		return nil, err
	}
	size := int64(proto.Size(req))
	if err := g.s.bytes.take(size); err != nil {
		return nil, err
	}
	defer g.s.bytes.give(size)
	most := g.s.cfg.Limits.Examples
	switch {
	case len(req.Lines) > 0 && len(req.Examples) > 0:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "lines and examples: want one of them")
	case len(req.Examples) > most:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d examples in a request: want at most %d",
			len(req.Examples), most)
	case len(req.Lines) > 0:
		return g.s.score(ctx, func(p *request.Parser) (*data.Batch, error) { return p.Text(req.Lines, most) })
	}
	examples := make([]request.Example, len(req.Examples))
	for i, e := range req.Examples {
		examples[i] = make(request.Example, len(e.Features))
		for name, f := range e.Features {
			v, err := valueOf(f)
			if err != nil {
				return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "example %d: %s: %w", i, rpc.CleanText(name), err)
			}
			examples[i][name] = v
		}
	}
	return g.s.score(ctx, func(p *request.Parser) (*data.Batch, error) { return p.Values(examples) })
}

// valueOf converts a feature.
func valueOf(f *servingv1.Feature) (request.Value, error) {
	list, kinds := f.Texts, 0
	for _, n := range []int{len(f.Texts), len(f.Ids), len(f.Numbers)} {
		if n > 0 {
			kinds++
		}
	}
	for _, id := range f.Ids {
		list = append(list, strconv.FormatUint(id, 10))
	}
	for _, x := range f.Numbers {
		list = append(list, strconv.FormatFloat(x, 'f', -1, 64))
	}
	v := request.Value{Weights: f.Weights}
	switch {
	case kinds > 1:
		return v, rowraft.Errorf(rowraft.CodeInvalidArgument, "values of several kinds: want texts, ids or numbers")
	case len(list) == 1 && !f.List && len(f.Weights) == 0:
		v.Text = list[0]
	case len(list) > 0 || f.List:
		v.List = append([]string{}, list...)
	}
	return v, nil
}
