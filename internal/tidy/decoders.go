package tidy

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"strings"
)

// decoders lists every function that takes apart what came over a network or off a
// disk, and the fuzz target that feeds it.
var decoders = map[string]string{
	"internal/parquetguard.CheckFooter":         "internal/tablefile.FuzzParquet",
	"internal/tablefile.openNPY":                "internal/tablefile.FuzzNPY",
	"internal/tablefile.openParquet":            "internal/tablefile.FuzzParquet",
	"internal/tablefile.parseNPYDict":           "internal/tablefile.FuzzNPY",
	"internal/tablefile.parseSafetensorsHeader": "internal/tablefile.FuzzSafetensors",
	"internal/tablefile.parquetReader.next":     "internal/tablefile.FuzzParquet",
	"internal/parquetguard.readPageHeader":      "internal/tablefile.FuzzParquet",
	"internal/tablefile.readTensors":            "internal/tablefile.FuzzSafetensors",
	"internal/parquetguard.skipThrift":          "internal/tablefile.FuzzParquet",

	"checkpoint.DecodeSplits":               "checkpoint.FuzzSplits",
	"checkpoint.ParseManifest":              "checkpoint.FuzzManifest",
	"checkpoint.ParseSums":                  "checkpoint.FuzzSums",
	"checkpoint.Reader.readEnded":           "checkpoint.FuzzReader",
	"checkpoint.Reader.block":               "checkpoint.FuzzReader",
	"checkpoint.Reader.candidates":          "checkpoint.FuzzReader",
	"checkpoint.Reader.chunk":               "checkpoint.FuzzReader",
	"checkpoint.Reader.finish":              "checkpoint.FuzzReader",
	"checkpoint.parseHeader":                "checkpoint.FuzzReader",
	"checkpoint.parseJob":                   "checkpoint.FuzzReader",
	"checkpoint.Job.parseMembers":           "checkpoint.FuzzReader",
	"checkpoint.Job.parseSteps":             "checkpoint.FuzzReader",
	"checkpoint.parseRankSet":               "checkpoint.FuzzReader",
	"checkpoint.parseSession":               "checkpoint.FuzzReader",
	"client.request.scatter":                "client.FuzzPullReply",
	"client.scan.parse":                     "client.FuzzScanReply",
	"client.scan.take":                      "client.FuzzScanReply",
	"cmd/rowraft/internal/server.fromFile":  "cmd/rowraft/internal/server.FuzzServerFile",
	"e2e/history.Decode":                    "e2e/history.FuzzDecode",
	"internal/certs.ParseIdentity":          "internal/certs.FuzzParseIdentity",
	"internal/certs.ParseRequest":           "internal/certs.FuzzParseRequest",
	"internal/certs.ParseToken":             "internal/certs.FuzzParseToken",
	"internal/identity.decode":              "internal/identity.FuzzDecode",
	"internal/rpc.FromDetail":               "internal/rpc.FuzzErrorDetail",
	"internal/rpc.FromStatus":               "internal/rpc.FuzzErrorDetail",
	"internal/rpc.MapFromProto":             "internal/rpc.FuzzMapFromProto",
	"internal/rpc.codec.Unmarshal":          "internal/rpc.FuzzCodecUnmarshal",
	"internal/rpc.reader.message":           "internal/rpc.FuzzCodecUnmarshal",
	"internal/rpc.parseBehalf":              "internal/rpc.FuzzBehalf",
	"internal/rpc.parseBatchSize":           "internal/rpc.FuzzBatchSize",
	"node.decodeKeptMap":                    "node.FuzzKeptMap",
	"raftstore/entry.Check":                 "raftstore/entry.FuzzSeal",
	"raftstore/entry.checkPlace":            "raftstore/entry.FuzzSeal",
	"raftstore.fsm.Restore":                 "raftstore.FuzzMachineSnapshot",
	"raftstore/transport.New":               "raftstore/transport.FuzzPeerStream", // raft's own messages
	"raftstore/marks.decode":                "raftstore/marks.FuzzMarks",
	"raftstore/marks.DecodeMembers":         "raftstore/marks.FuzzMembers",
	"raftstore/raftlog.decodeMeta":          "raftstore/raftlog.FuzzMetaDecode",
	"raftstore/registry.Read":               "raftstore/registry.FuzzRegistry",
	"raftstore/timers.ParseReport":          "raftstore/transport.FuzzTimers",
	"raftstore/snapstore.ReadStateHeader":   "raftstore.FuzzMachineSnapshot",
	"raftstore/raftlog.parseBatchHead":      "raftstore/raftlog.FuzzRowLog",
	"raftstore/entry.ParseHead":             "raftstore/raftlog.FuzzRowLog",
	"raftstore/raftlog.parseOwner":          "raftstore/raftlog.FuzzMetaDecode",
	"raftstore/raftlog.parseSegmentHeader":  "raftstore/raftlog.FuzzRowLog",
	"raftstore/transport.readAppend":        "raftstore/transport.FuzzAppendRequest",
	"raftstore/transport.parseAppend":       "raftstore/transport.FuzzAppendRequest",
	"raftstore/transport.parseAppendSizes":  "raftstore/transport.FuzzAppendRequest",
	"raftstore/transport.readShared":        "raftstore/transport.FuzzShared",
	"raftstore/transport.parseSharedAnswer": "raftstore/transport.FuzzShared",
	"raftstore/transport.readAppendReply":   "raftstore/transport.FuzzAppendReply",
	"raftstore/raftlog.recovery.take":       "raftstore/raftlog.FuzzRowLog",
	"raftstore/raftlog.window.wholeBatch":   "raftstore/raftlog.FuzzRowLog",
	"raftstore/frame.Open":                  "raftstore/registry.FuzzRegistry",
	"raftstore/registry.Open":               "raftstore/registry.FuzzRegistry",
	"raftstore/peer.readPreamble":           "raftstore/peer.FuzzPreamble",
	"raftstore/peer.readReply":              "raftstore/peer.FuzzReply",
	"raftstore/marks.ParseStatement":        "raftstore/peer.FuzzReply",
	"raftstore/snapstore.readMeta":          "raftstore/snapstore.FuzzSnapshotMeta",
	"raftstore/snapstore.reader.readChunk":  "raftstore/snapstore.FuzzSnapshotData",
	"raftstore/snapstore.reader.readHeader": "raftstore/snapstore.FuzzSnapshotData",
	"scheduler/meta.decodeFrame":            "scheduler/meta.FuzzEntry",
	"scheduler/meta.Machine.Restore":        "scheduler/meta.FuzzRestore",
	"shard.Machine.Apply":                   "e2e/reference.FuzzApply",
	"shard.Reads.Pull":                      "shard.FuzzPull",
	"shard.Machine.Restore":                 "shard.FuzzRestore",
	"shard/rowstore.Table.RestoreRow":       "shard/rowstore.FuzzRestoreRow",
	"trainer.LoadConfig":                    "trainer.FuzzConfig",
	"trainer/report.Number.UnmarshalJSON":   "trainer/report.FuzzNumber",
	"trainer/average.frameCodec.read":       "trainer/average.FuzzFrame",
	"trainer/average.parseHead":             "trainer/average.FuzzFrame",
	"trainer/data.DecodeYAML":               "trainer.FuzzConfig",
	"trainer/data.LoadSchema":               "trainer/data.FuzzFile",
	"trainer/data.idxFile.head":             "trainer/data.FuzzIdx",
	"trainer/data/request.Parser.JSON":      "trainer/data/request.FuzzRequest",
	"trainer/data/request.tokens.string":    "trainer/data/request.FuzzRequest",
	"trainer/data.openIdx":                  "trainer/data.FuzzIdx",
	"trainer/data.openLines":                "trainer/data.FuzzFile",
	"trainer/data.splitter.split":           "trainer/data.FuzzSplit",
	"trainer/exported.parse":                "trainer/exported.FuzzOpen",
	"trainer.sameFingerprint":               "trainer.FuzzFingerprint",
	"trainer/runs.parse":                    "trainer/runs.FuzzRecord",
	"trainer/runs.checkHead":                "trainer/runs.FuzzRecord",
	"trainer/state.Read":                    "trainer/state.FuzzRead",
	"trainer/state.reader.header":           "trainer/state.FuzzRead",
	"trainer/state.reader.opaque":           "trainer/state.FuzzRead",
	"trainer/state.reader.place":            "trainer/state.FuzzRead",
	"trainer/state.reader.tensor":           "trainer/state.FuzzRead",
	"wire.ParseClock":                       "wire.FuzzParseClock",
	"wire.parsePositions":                   "wire.FuzzParseClock",
	"wire.ParseMembership":                  "wire.FuzzParseEntry",
	"wire.ParseStep":                        "wire.FuzzParseEntry",
	"wire.ParseDropTable":                   "wire.FuzzParseEntry",
	"wire.ParseEntryHeader":                 "wire.FuzzParseEntry",
	"wire.ParseCloseSession":                "wire.FuzzParseEntry",
	"wire.ParseOpenSession":                 "wire.FuzzParseEntry",
	"wire.ParsePart":                        "wire.FuzzParseEntry",
	"wire.ParseProof":                       "wire.FuzzParseEntry",
	"wire.ParseRestoreBegin":                "wire.FuzzParseEntry",
	"wire.ParseRestoreBlock":                "wire.FuzzParseEntry",
	"wire.ParseRestoreClose":                "wire.FuzzParseEntry",
	"wire.ParseRestoreRows":                 "wire.FuzzParseEntry",
	"wire.ParseSweep":                       "wire.FuzzParseEntry",
	"wire.ParseSchema":                      "wire.FuzzParseSchema",
	"wire.parseExtension":                   "wire.FuzzParseSchema",
	"wire.ParseSegment":                     "wire.FuzzParseSegment",
	"wire.CheckKeys":                        "wire.FuzzParseSegment",
	"wire.CheckFinite":                      "wire.FuzzParseSegment",
	"raftstore/raftlog.parseSection":        "raftstore/raftlog.FuzzRowLog",
	"raftstore/raftlog.parseState":          "raftstore/raftlog.FuzzRowLog",
	"checkpoint.Reader.coldRows":            "checkpoint.FuzzLocalReader",
	"checkpoint.Reader.readColdFiles":       "checkpoint.FuzzLocalReader",
	"shard/rowstore/digest.Of":              "shard.FuzzRestore",
	"shard/rowstore/candidate.Parse":        "e2e/reference.FuzzLoad",
	"trainer/data.Paths.UnmarshalYAML":      "trainer.FuzzConfig",
	"trainer/data.cells":                    "trainer/data.FuzzSplit",
	"trainer/data.openStream":               "trainer/data.FuzzFile",
	"trainer/data/number.Parse":             "trainer/data.FuzzFile",
	"trainer/data/number.ParseID":           "trainer/data.FuzzFile",
}

// noDecoders do what decoders do; why they need no target.
var noDecoders = map[string]string{
	"raftstore/transport.hasShared":     "a length that readShared reads again, and checks",
	"capi.call":                         "JSON of the same process",
	"capi.request":                      "JSON of the same process",
	"capi.readMode":                     "JSON of the same process",
	"capi.work":                         "JSON of the same process",
	"internal/certs.readPEM":            "a file of the operator, through encoding/pem",
	"internal/certs.parseAll":           "likewise",
	"internal/certs.Source.authorities": "likewise",
	"checkpoint.shardFileCheck.block":   "its bytes are those that Reader has checked",
	"checkpoint.merge.block":            "likewise",
	"trainer/average.jobFloats":         "an id, its own or 16 bytes of a frame",
	"checkpoint.Digest.Add":             "a sum, of any 16 bytes",
	"checkpoint.Regroup":                "its bytes are those that Reader has checked",
	"clustermap.JobSlot":                "16 bytes, whatever they are",
	"wire.NextContributor":              "a contributor of a list that ParsePart has measured",
	"wire.Body.Key":                     "a place in what ParseSegment has measured",
	"wire.GetFloats":                    "as many numbers as ParseSegment has measured",
	"wire.Keys":                         "as many keys as ParseSegment has measured",
	"wire.Widen": "as many numbers as its caller has room for, of bytes that it has " +
		"measured",
	"shard/rowstore/coldfile.File.readOne":       "a record that has its length, and its checksum",
	"shard/rowstore/coldfile.File.Check":         "a header of fixed length",
	"shard/rowstore/coldfile.newSeed":            "random bytes",
	"shard/rowstore.Tier.RestoreCold":            "entries of fixed length that the stream has counted",
	"shard/rowstore.ColdPlace":                   "likewise",
	"client.segmentRows.getVersions":             "as many rows as ParseSegment has measured",
	"shard/rowstore.leaveOut":                    "as many versions as PullVersions has measured",
	"shard/rowstore.knownVersion":                "likewise",
	"wire.Segment.checkUnchanged":                "a bitmap that ParseSegment has measured, in wire.FuzzParseSegment",
	"wire.Convert":                               "numbers of a record that has its length",
	"raftstore/frame.Reader.Uint16":              "a field of what Open has checked",
	"raftstore/frame.Reader.Uint32":              "likewise",
	"raftstore/frame.Reader.Uint64":              "likewise",
	"checkpoint.Weights":                         "a record that Reader has given out",
	"internal/tablefile.getKeys":                 "as many ids as the length of the file has been held against",
	"internal/tablefile.number.get":              "likewise of numbers",
	"raftstore/raftlog.Owner.tag":                "of a hash that it computes",
	"raftstore/raftlog.metaStore.GetUint64":      "eight bytes that decodeMeta has measured",
	"scheduler/metatest.Leader.EditState":        "a snapshot that it has just written",
	"scheduler.newTableID":                       "random bytes, its own",
	"trainer.Config.settings":                    "what Fingerprint has just made",
	"cmd/rowraft/internal/server.faultFile.read": "what a test wrote, in builds for tests only",
	"cmd/rowraft/internal/demo.run.evaluate":     "what our own trainer wrote, for the demo's page",
	"internal/cli.WriteYAML":                     "its own output on the way to YAML",
	"cmd/rowraft-trainer.options.headOf":         "its own settings on the way to JSON",
}

// decodes reports whether a call takes bytes apart.
func decodes(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x := ""
	switch e := sel.X.(type) {
	case *ast.Ident:
		x = e.Name
	case *ast.SelectorExpr:
		x = e.Sel.Name
	}
	name := sel.Sel.Name
	switch {
	case name == "Unmarshal", name == "Decode", name == "NewDecoder" && (x == "json" || x == "yaml" || x == "xml"):
		return true
	case x == "le" || x == "LittleEndian" || x == "BigEndian":
		return strings.HasPrefix(name, "Uint")
	case x == "gzip":
		return name == "NewReader"
	}
	return false
}

// ofTests are the trees that read what programs of this repository wrote for a test.
var ofTests = under("cmd/rowraft-bench", "e2e", "cmd/rowraft-chaos", "internal/tidy", "internal/localcluster")

// functionName is dir.Func or dir.Type.Method.
func functionName(f *File, d *ast.FuncDecl) string {
	name := d.Name.Name
	if d.Recv != nil && len(d.Recv.List) == 1 {
		t := d.Recv.List[0].Type
		if s, ok := t.(*ast.StarExpr); ok {
			t = s.X
		}
		if id, ok := t.(*ast.Ident); ok {
			name = id.Name + "." + name
		}
	}
	return f.Dir + "." + name
}

// checkDecoders wants a fuzz target for each decoder: those listed exist, with
// targets that exist, and what looks like one is listed.
func checkDecoders(r *Repo) []Finding {
	const rule = "decoders"
	var out []Finding
	targets, found := map[string]bool{}, map[string]bool{}
	for _, f := range r.Files {
		if !f.Test {
			continue
		}
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				targets[f.Dir+"."+fn.Name.Name] = true
			}
		}
	}
	for _, f := range r.Files {
		if f.Test || f.Generated {
			continue
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			name := functionName(f, fn)
			found[name] = true
			if target := decoders[name]; target != "" {
				if !targets[target] {
					out = append(out, r.finding(rule, f, fn, "%s reads foreign bytes, and its fuzz target %s does not exist", name,
						target))
				}
				continue
			}
			if noDecoders[name] != "" || ofTests(f.Dir) {
				continue
			}
			var at ast.Node
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && at == nil && decodes(call) {
					at = call
				}
				return at == nil
			})
			if at != nil {
				out = append(out,
					r.finding(rule, f, at,
						"%s takes bytes apart: name its fuzz target in internal/tidy/decoders.go, or why it needs none", name))
			}
		}
	}
	if len(r.Files) < 20 {
		return out // an example
	}
	for _, list := range []map[string]string{decoders, noDecoders} {
		for name := range sorted(list) {
			if !found[name] {
				out = append(out, Finding{Path: "internal/tidy/decoders.go", Rule: rule,
					Msg: fmt.Sprintf("%s does not exist any more: take it out", name)})
			}
		}
	}
	return out
}

// CheckCorpora wants committed inputs for every target of decoders below root.
func CheckCorpora(root string) []string {
	var bad []string
	seen := map[string]bool{}
	for _, target := range sorted(decoders) {
		dir, name, _ := strings.Cut(target, ".")
		if seen[target] {
			continue
		}
		seen[target] = true
		corpus := filepath.Join(root, dir, "testdata", "fuzz", name)
		if files, err := os.ReadDir(corpus); err != nil || len(files) == 0 {
			bad = append(bad, fmt.Sprintf("%s has no committed corpus in %s", target, corpus))
		}
	}
	return bad
}
