package tableconf

import "math"

// Kinds of schedules.
const (
	Constant    = "constant"
	Linear      = "linear"
	Exponential = "exponential"
	Cosine      = "cosine"
)

// Schedule changes the learning rate of a table with the steps of the pushing trainer. With t = 0, 1, … the
// number of earlier steps, w = Warmup, u = t − w, s = Steps, and lr the table's rate:
//
//	t < w          lr·(t + 1)/w
//	constant       lr
//	linear         end + (lr − end)·(1 − u/s)            end from u = s on
//	cosine         end + (lr − end)·(1 + cos(π·u/s))/2   end from u = s on
//	exponential    lr·decay^(u/s), but not less than end
//
// Cosine is equation (5) of Loshchilov & Hutter, SGDR, ICLR 2017, without restarts. The rate is computed in float64
// with + − × ÷ and √ alone, so every machine gets the same numbers, and rounded to float32. A rate is at least
// 2^-60, because 0 in a push means the table's rate.
type Schedule struct {
	Kind   string  `yaml:"kind" json:"kind"`
	Warmup int64   `yaml:"warmup" json:"warmup,omitempty"` // steps
	Steps  int64   `yaml:"steps" json:"steps,omitempty"`   // from the end of the warmup
	End    float32 `yaml:"end" json:"end,omitempty"`       // a learning rate
	Decay  float32 `yaml:"decay" json:"decay,omitempty"`   // exponential: a share
}

// minRate keeps rates above 0.
const minRate = 0x1p-60

func (s *Schedule) validate(lr float32) error {
	if s == nil {
		return nil
	}
	decays := s.Kind == Exponential
	switch {
	case s.Kind != Constant && s.Kind != Linear && s.Kind != Cosine && !decays:
		return invalid("schedule: kind %q: want %s, %s, %s or %s", s.Kind, Constant, Linear, Exponential, Cosine)
	case s.Warmup < 0:
		return invalid("schedule: warmup is %d: want 0 or more steps", s.Warmup)
	case s.Kind == Constant && (s.Steps != 0 || s.End != 0):
		return invalid("schedule: steps and end have no meaning in a %s schedule", s.Kind)
	case s.Kind != Constant && s.Steps < 1:
		return invalid("schedule: steps is %d: want 1 or more, the steps until the %s schedule ends or decays once",
			s.Steps, s.Kind)
	case !(s.End >= 0 && s.End <= lr):
		return invalid("schedule: end is %v: want 0 to the learning rate %v", s.End, lr)
	case decays && !(s.Decay > 0 && s.Decay < 1):
		return invalid("schedule: decay %v: want more than 0 and less than 1", s.Decay)
	case !decays && s.Decay != 0:
		return invalid("schedule: decay has no meaning in a %s schedule", s.Kind)
	}
	return nil
}

// Rate returns the learning rate of step, counted from 1, for a table with rate lr; 0, which means lr, without a
// schedule.
func (s *Schedule) Rate(lr float32, step int64) float32 {
	if s == nil {
		return 0
	}
	full, end := float64(lr), float64(s.End)
	t := max(step-1, 0)
	if t < s.Warmup {
		return rate(full * (float64(t+1) / float64(s.Warmup)))
	}
	u := t - s.Warmup
	done := float64(u) / float64(max(s.Steps, 1))
	switch {
	case s.Kind == Exponential:
		return rate(max(end, full*power(float64(s.Decay), u, s.Steps)))
	case s.Kind == Constant:
		return rate(full)
	case u >= s.Steps:
		return rate(end)
	case s.Kind == Cosine:
		return rate(end + float64((full-end)*((1+cosPi(done))/2)))
	}
	return rate(end + float64((full-end)*(1-done)))
}

func rate(r float64) float32 { return max(float32(r), minRate) }

// power returns d^(u/s) for 0 < d < 1: squares for the integer part of the exponent, roots for the binary digits of
// the rest.
func power(d float64, u, s int64) float64 {
	p, square := 1.0, d
	for n := u / s; n > 0 && p > 0; n >>= 1 {
		if n&1 == 1 {
			p *= square
		}
		square *= square
	}
	rest, root := float64(u%s)/float64(s), d
	for range 50 {
		root, rest = math.Sqrt(root), 2*rest
		if rest >= 1 {
			p, rest = p*root, rest-1
		}
	}
	return p
}

// cosPi returns cos(π·x) for x in [0, 1], by the series around 0, to 1e-14.
func cosPi(x float64) float64 {
	sign := 1.0
	if x > 0.5 {
		sign, x = -1, 1-x
	}
	y := float64(math.Pi * x)
	square := float64(y * y)
	sum := 1.0
	for n := 20.0; n >= 2; n -= 2 {
		sum = 1 - float64(float64(square*sum)/float64(n*(n-1)))
	}
	return sign * sum
}
