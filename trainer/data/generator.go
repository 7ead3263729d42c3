package data

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/rowraft/rowraft/trainer/data/zipf"
)

// GeneratorConfig describes a generated click log.
//
// Each example has Categorical keys, the ranks of Zipf laws, and Dense numbers,
// nearly standard normal. Its label is drawn with the probability σ(z),
//
//	z = Bias + Signal · (Σ w[f, rank]/√F + Σ v[d]·x[d]/√D + Interaction · Σ u[f, rank]·u[f+1, rank]/√F) / √2
//
// where w, v and u are fixed numbers computed from Seed: v of variance 1, w and
// u of variance Head/(Head + rank), so that the rarer a key, the less it says, and
// what it says can be learned from the examples there are. As the probability
// is known, so is the best AUC any model can reach.
type GeneratorConfig struct {
	Seed        uint64  `yaml:"seed"`
	Examples    int64   `yaml:"examples"` // training examples; 0: no end
	Held        int64   `yaml:"held"`     // held-out examples, from a stream of their own
	Dense       int     `yaml:"dense"`
	Categorical int     `yaml:"categorical"`
	Keys        int64   `yaml:"keys"` // different keys per categorical feature
	Zipf        float64 `yaml:"zipf"` // exponent of the power law of the keys
	Head        float64 `yaml:"head"` // rank up to which keys carry much information
	Bias        float64 `yaml:"bias"`
	Signal      float64 `yaml:"signal"`
	Interaction float64 `yaml:"interaction"`
}

// DefaultGenerator returns the click log of `rowraft demo`.
func DefaultGenerator() GeneratorConfig {
	return GeneratorConfig{
		Seed: 1, Examples: 1_000_000, Held: 40_000,
		Dense: 4, Categorical: 8, Keys: 20_000, Zipf: 1.05, Head: 100,
		Bias: -1.2, Signal: 2, Interaction: 0.3,
	}
}

// Generator is a data set that computes its examples: example i of a stream is a function of the configuration, the
// stream and i, so any number of trainers can take their shares without reading the others'. Immutable.
type Generator struct {
	cfg   GeneratorConfig
	zipf  *zipf.Law
	dense []float64 // v
}

// Streams of a generator.
const (
	streamTrain = 1
	streamHeld  = 2
)

// NewGenerator checks cfg and returns a generator for it.
func NewGenerator(cfg GeneratorConfig) (*Generator, error) {
	switch {
	case cfg.Examples < 0 || cfg.Held < 0:
		return nil, invalid("generator: examples %d, held %d: want ≥ 0", cfg.Examples, cfg.Held)
	case cfg.Dense < 0 || cfg.Categorical < 1 || cfg.Keys < 1:
		return nil, invalid("generator: dense %d, categorical %d, keys %d: want dense ≥ 0, categorical and keys ≥ 1",
			cfg.Dense, cfg.Categorical, cfg.Keys)
	}
	for _, v := range []float64{cfg.Bias, cfg.Signal, cfg.Interaction} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, invalid("generator: bias, signal and interaction must be finite")
		}
	}
	if !(cfg.Head > 0) || math.IsInf(cfg.Head, 0) {
		return nil, invalid("generator: head %v: want a finite number > 0", cfg.Head)
	}
	z, err := zipf.New(cfg.Keys, cfg.Zipf)
	if err != nil {
		return nil, fmt.Errorf("generator: %w", err)
	}
	g := &Generator{cfg: cfg, zipf: z, dense: make([]float64, cfg.Dense)}
	for d := range g.dense {
		g.dense[d] = g.planted('v', d, 0)
	}
	return g, nil
}

// Shape implements [Set].
func (g *Generator) Shape() Shape {
	return Shape{Dense: g.cfg.Dense, Categorical: g.cfg.Categorical, Truth: true}
}

// TrainSize implements [Set].
func (g *Generator) TrainSize() int64 { return g.cfg.Examples }

// Name implements [Set].
func (g *Generator) Name() string { return fmt.Sprintf("generated click log, seed %d", g.cfg.Seed) }

// Train implements [Set].
func (g *Generator) Train(_ int64, rank, trainers int) (Source, error) {
	to := g.cfg.Examples
	if to == 0 {
		to = -1
	}
	return g.open(streamTrain, Share{To: to, Rank: rank, Trainers: trainers})
}

// Range implements [Ranger].
func (g *Generator) Range(_, from, to int64) (Source, error) {
	if g.cfg.Examples > 0 {
		to = min(to, g.cfg.Examples)
	}
	s, err := g.open(streamTrain, Share{To: to, Trainers: 1})
	if err != nil {
		return nil, err
	}
	s.number = from
	return s, nil
}

// HeldSize implements [Set].
func (g *Generator) HeldSize() int64 { return g.cfg.Held }

// Held implements [Set].
func (g *Generator) Held() (Source, error) {
	return g.open(streamHeld, Share{To: g.cfg.Held, Trainers: 1})
}

func (g *Generator) open(stream uint64, p Share) (*generated, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	s := &generated{g: g, share: p, seed: mix(g.cfg.Seed + stream*0x9e3779b97f4a7c15), number: int64(p.Rank)}
	for f := range g.cfg.Categorical {
		s.hashers = append(s.hashers, NewHasher(categoricalName(f)))
	}
	s.ranks = make([]int64, g.cfg.Categorical)
	s.next = s.uniform
	return s, nil
}

func categoricalName(f int) string { return "c" + strconv.Itoa(f+1) }
func denseName(d int) string       { return "d" + strconv.Itoa(d+1) }

// mix is splitmix64's finalizer.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// bell returns a number of mean 0 and variance 1 from 64 random bits: the sum of four uniforms of 16 bits.
func bell(bits uint64) float64 {
	sum := bits&0xffff + bits>>16&0xffff + bits>>32&0xffff + bits>>48
	return (float64(sum)/65536 + 2.0/65536 - 2) * math.Sqrt(3)
}

// planted returns the fixed number of (kind, feature, rank).
func (g *Generator) planted(kind byte, feature int, rank int64) float64 {
	z := mix(g.cfg.Seed + uint64(kind)<<56 + uint64(feature+1)<<40)
	return bell(mix(z + uint64(rank)*0x9e3779b97f4a7c15))
}

// generated is one stream of a generator, or a rank's share of it.
type generated struct {
	g       *Generator
	share   Share
	seed    uint64
	number  int64 // of the next example
	state   uint64
	next    func() float64
	ranks   []int64
	hashers []*Hasher
	value   []byte // scratch
}

func (s *generated) bits() uint64 {
	s.state += 0x9e3779b97f4a7c15
	return mix(s.state)
}

func (s *generated) uniform() float64 { return float64(s.bits()>>11) / (1 << 53) }

// Next implements [Source].
func (s *generated) Next(b *Batch) error {
	b.Reset()
	b.First = s.number
	for b.N < len(b.Labels) && (s.share.To < 0 || s.number < s.share.To) {
		f := s.g.cfg.Categorical
		d := s.g.cfg.Dense
		label, p := s.example(b.Dense[b.N*d : b.N*d+d])
		b.Labels[b.N] = label
		if b.Truth != nil {
			b.Truth[b.N] = float32(p)
		}
		for i, rank := range s.ranks {
			s.value = strconv.AppendInt(s.value[:0], rank, 10)
			b.Keys = append(b.Keys, s.hashers[i].Key(s.value))
			b.Offsets[b.N*f+i+1] = int32(len(b.Keys))
		}
		b.N++
		s.number += int64(s.share.Trainers)
	}
	b.Read = b.N
	if b.N == 0 {
		return io.EOF
	}
	return nil
}

// Skip implements [Source]. It is instant: each example is drawn from its number.
func (s *generated) Skip(n int64) error {
	last := s.number + (n-1)*int64(s.share.Trainers)
	if n > 0 && s.share.To >= 0 && last >= s.share.To {
		return io.EOF
	}
	s.number += n * int64(s.share.Trainers)
	return nil
}

// example fills dense and s.ranks and returns the label and its probability.
func (s *generated) example(dense []float32) (label float32, p float64) {
	g := s.g
	s.state = mix(s.seed + uint64(s.number)*0xd1342543de82ef95)
	root := math.Sqrt(float64(g.cfg.Categorical))
	z, before := 0.0, 0.0
	for f := range s.ranks {
		rank := g.zipf.Draw(s.next)
		s.ranks[f] = rank
		says := math.Sqrt(g.cfg.Head/(g.cfg.Head+float64(rank))) / root
		z += g.planted('w', f, rank) * says
		if g.cfg.Interaction != 0 {
			u := g.planted('u', f, rank) * says
			z += g.cfg.Interaction * u * before * root
			before = u
		}
	}
	for d := range dense {
		dense[d] = float32(bell(s.bits()))
		z += g.dense[d] * float64(dense[d]) / math.Sqrt(float64(len(dense)))
	}
	p = 1 / (1 + math.Exp(-(g.cfg.Bias + g.cfg.Signal*z/math.Sqrt2)))
	if s.uniform() < p {
		label = 1
	}
	return label, p
}

// Close implements [Source].
func (s *generated) Close() error { return nil }

// WriteCSV writes the first n examples of the training stream to w, with a
// header. Read back with [Generator.Schema], they have the same keys and
// numbers. The true probabilities are not written.
func (g *Generator) WriteCSV(ctx context.Context, w io.Writer, n int64) error {
	s, err := g.open(streamTrain, Share{To: n, Trainers: 1})
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 256<<10)
	out.WriteString("label")
	for d := range g.cfg.Dense {
		out.WriteString("," + denseName(d))
	}
	for f := range g.cfg.Categorical {
		out.WriteString("," + categoricalName(f))
	}
	dense := make([]float32, g.cfg.Dense)
	var line []byte
	for ; s.number < n; s.number++ {
		if s.number%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		label, _ := s.example(dense)
		line = append(line[:0], '\n', '0'+byte(label))
		for _, x := range dense {
			line = strconv.AppendFloat(append(line, ','), float64(x), 'g', -1, 32)
		}
		for _, r := range s.ranks {
			line = strconv.AppendInt(append(line, ','), r, 10)
		}
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	out.WriteByte('\n')
	return out.Flush()
}

// SchemaYAML returns the schema of the files of WriteCSV.
func (g *Generator) SchemaYAML() string {
	text := "# A click log written by rowraft-trainer gen.\nformat: csv\nlabel: {column: label}\n"
	if g.cfg.Dense > 0 {
		text += "dense:\n"
	}
	for d := range g.cfg.Dense {
		text += "  - {column: " + denseName(d) + "}\n"
	}
	text += "categorical:\n"
	for f := range g.cfg.Categorical {
		text += "  - {column: " + categoricalName(f) + "}\n"
	}
	return text
}
