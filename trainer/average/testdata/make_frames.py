# Makes frames.hex from docs/formats/average.md, without any of the project's code.
import struct

def frame(kind, generation, round, who, numbers):
    head = b"RWAV" + struct.pack("<HHQQII", 1, kind, generation, round, who, len(numbers) // 4)
    return head + numbers

job = bytes(range(1, 17))
floats = struct.pack("<3f", 1.5, -2.0, 0.25)
for f in [
    frame(1, 3, 7, 2, job),
    frame(2, 3, 7, 0, b""),
    frame(3, 3, 8, 0, b""),
    frame(4, 3, 8, 1, floats),
    frame(5, 3, 8, 1, floats),
    frame(6, 3, 8, 4, floats),
    frame(7, 3, 9, 1, b""),
    frame(8, 0, 0, 1, b""),
]:
    print(f.hex())
