package trainer

import "github.com/rowraft/rowraft/trainer/models/kernel"

// pool writes a field of width numbers for each feature of each example: the sum of the rows of its values. index has
// the row of each value. ends has, for each field, the end of its values in index; nil: each field has one value, so
// it is a copy of the row. pool returns how many numbers of fields it wrote.
func pool(fields, rows []float32, width int, index, ends []int32) int {
	if ends == nil {
		for i, row := range index {
			copy(fields[i*width:(i+1)*width], rows[int(row)*width:])
		}
		return len(index) * width
	}
	from := int32(0)
	for i, end := range ends {
		field := fields[i*width : (i+1)*width]
		clear(field)
		for _, row := range index[from:end] {
			kernel.Add(field, rows[int(row)*width:])
		}
		from = end
	}
	return len(ends) * width
}

// unpool adds the gradient of each field to the gradients of the rows that pool summed for it, in the order of fields
// and values.
func unpool(rowGrads, fieldGrads []float32, width int, index, ends []int32) {
	if ends == nil {
		for i, row := range index {
			kernel.Add(rowGrads[int(row)*width:(int(row)+1)*width], fieldGrads[i*width:])
		}
		return
	}
	from := int32(0)
	for i, end := range ends {
		for _, row := range index[from:end] {
			kernel.Add(rowGrads[int(row)*width:(int(row)+1)*width], fieldGrads[i*width:])
		}
		from = end
	}
}
