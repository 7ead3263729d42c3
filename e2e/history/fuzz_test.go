package history

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

// FuzzDecode: a history that is read is written and read as the same.
func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, op := range []Op{
		{Kind: Push, Client: 1, Call: 1, Return: 2, Outcome: OK, Rows: []int{1, 2}},
		{Kind: Pull, Client: 2, Call: 3, Return: 9, Outcome: Refused, Rows: []int{7}, Values: [][]int64{{1, 2, 3}},
			Mode: "leader"},
		{Kind: Fault, Client: -1, Fault: "kill", Target: "n1", Observed: "gone", Error: "e"},
	} {
		if err := enc.Encode(op); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:b.Len()-5])
	f.Add([]byte(`{"kind":"push","client":1e9}{}[]`))
	f.Fuzz(func(t *testing.T, in []byte) {
		ops, err := Decode(bytes.NewReader(in))
		if err != nil {
			return
		}
		var out bytes.Buffer
		enc := json.NewEncoder(&out)
		for _, op := range ops {
			if err := enc.Encode(op); err != nil {
				t.Fatal(err)
			}
		}
		again, err := Decode(&out)
		if err != nil || len(again) != len(ops) {
			t.Fatalf("%d ops are written and read as %d, %v", len(ops), len(again), err)
		}
		for i := range ops {
			if len(ops[i].Rows) == 0 {
				ops[i].Rows = nil // left out when it is written
			}
			if len(ops[i].Values) == 0 {
				ops[i].Values = nil
			}
			if !reflect.DeepEqual(ops[i], again[i]) {
				t.Errorf("%+v is written and read as %+v", ops[i], again[i])
			}
		}
	})
}
