package data

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// fit computes the mean and the standard deviation of the numeric features that the training examples standardize. It
// reads these examples in the order of the files, so that every trainer gets the same bits. Missing values do not
// count; a feature with one value gets the deviation 1.
func (f *Files) fit() error {
	sub := *f.schema
	sub.Labels, sub.Categorical, sub.Dense = nil, nil, nil
	var which []int
	for i, d := range f.schema.Dense {
		if !d.fitted() {
			continue
		}
		which = append(which, i)
		d.Standardize, d.Missing = false, math.NaN()
		if d.Transform == "standardize" {
			d.Transform = ""
		}
		sub.Dense = append(sub.Dense, d)
	}
	if which == nil {
		return nil
	}
	if f.opt.NoFit {
		return invalid("%s: feature %s is standardized by the training examples, whose mean and std are not known here: "+
			"give --model, the file of train --save-model, which has them", f.Name(), f.schema.Dense[which[0]].Column)
	}
	part := &Files{schema: &sub, opt: f.opt, base: f.base, train: f.train, note: func(string) {}}
	part.opt.MaxBad, part.opt.Shuffle = 1, ShuffleNone // bad lines count when they are trained
	for _, in := range f.inputs {
		narrow := *in
		narrow.columns = nil
		part.inputs = append(part.inputs, &narrow)
	}
	s := newSource(part, part.orderOf(0), Share{To: f.train, Trainers: 1})
	defer s.Close()
	type moments struct{ n, mean, squares float64 }
	all := make([]moments, len(which))
	b := NewBatch(4096, sub.Shape())
	for {
		err := s.Next(b)
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		for i, x := range b.Dense[:b.N*len(which)] {
			if x != x { // missing
				continue
			}
			m := &all[i%len(which)]
			m.n++
			d := float64(x) - m.mean
			m.mean += d / m.n
			m.squares += float64(d * (float64(x) - m.mean)) // Welford, Technometrics 4, 1962; never fused
		}
	}
	schema := *f.schema
	schema.Dense = slices.Clone(schema.Dense)
	for i, at := range which {
		d := &schema.Dense[at]
		d.measured = true
		d.Mean, d.Std = all[i].mean, math.Sqrt(all[i].squares/max(all[i].n, 1))
		if !(d.Std > 0) || math.IsInf(d.Std, 0) || math.IsInf(d.Mean, 0) {
			d.Mean, d.Std = all[i].mean, 1
		}
		if math.IsInf(d.Mean, 0) || math.IsNaN(d.Mean) {
			return invalid("%s: the mean of %s is not finite", f.Name(), d.Column)
		}
	}
	f.schema = &schema
	return nil
}

// Fitted reports whether the training examples decide a mean and a standard deviation that s does not have yet.
func (s *Schema) Fitted() bool {
	return slices.ContainsFunc(s.Dense, func(d Dense) bool { return d.fitted() })
}

// Complete reports whether s needs nothing of the training examples, not even their header.
func (s *Schema) Complete() bool { return !s.Fitted() && !s.derived() }

// Measured returns mean and standard deviation of the columns that the training examples standardize.
func (s *Schema) Measured() map[string][2]float64 {
	out := make(map[string][2]float64)
	for i := range s.Dense {
		if d := &s.Dense[i]; d.measured {
			out[d.Column.String()] = [2]float64{d.Mean, d.Std}
		}
	}
	return out
}

// headerName returns the name of a column in the header.
func (s *Schema) headerName(text string) string {
	if s.Format != formatInter {
		return text
	}
	name, _, _ := strings.Cut(text, ":")
	return name
}

// fromHeader returns s with the features that the header of a file in the layout of RecBole names: a token is a
// category, a token_seq has many, separated by spaces, and a float is a number, which the training examples
// standardize.
func (s *Schema) fromHeader(path string, first []byte) (*Schema, error) {
	out := *s
	for text := range strings.SplitSeq(string(first), out.Separator) {
		name, kind, ok := strings.Cut(text, ":")
		if slices.ContainsFunc(s.Labels, func(l Label) bool { return l.Column.Column == name }) {
			continue
		}
		c := Column{Column: name}
		switch kind {
		case "token":
			out.Categorical = append(out.Categorical, Categorical{Column: c})
		case "token_seq":
			out.Categorical = append(out.Categorical, Categorical{Column: c, Separator: " "})
		case "float":
			out.Dense = append(out.Dense, Dense{Column: c, Transform: "standardize"})
		default:
			if !ok {
				return nil, invalid("%s:1: column %q has no type: want NAME:TYPE in format inter", path, text)
			}
			return nil, invalid("%s:1: column %s has the type %s: want token, token_seq or float, or list the features in "+
				"the schema", path, name, kind)
		}
	}
	if len(out.Categorical) == 0 {
		return nil, invalid("%s:1: no column of type token or token_seq next to the label", path)
	}
	for i := range out.Dense {
		if err := out.Dense[i].complete(); err != nil {
			return nil, fmt.Errorf("%s:1: %w", path, err)
		}
	}
	for i := range out.Categorical {
		if err := out.Categorical[i].complete(i, false); err != nil {
			return nil, fmt.Errorf("%s:1: %w", path, err)
		}
	}
	return &out, nil
}
