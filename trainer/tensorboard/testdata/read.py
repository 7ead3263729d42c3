"""Prints the scalars of an event folder as JSON, as TensorBoard itself reads them."""
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

acc = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
acc.Reload()
out = {}
for tag in acc.Tags()["scalars"]:
    out[tag] = [[e.step, e.value] for e in acc.Scalars(tag)]
for tag in acc.Tags()["tensors"]:
    out[tag] = [[e.step, e.tensor_proto.float_val[0]] for e in acc.Tensors(tag)]
print(json.dumps(out))
