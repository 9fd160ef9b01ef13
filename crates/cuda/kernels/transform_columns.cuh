// Which columns a transform reads.

// The column of the value that the rotation has at this place.
DEVICE int place_of(const TransformArgs& a, int column) {
    if (!a.outer) return column;
    int each = a.group_width / (a.outer * a.inner), in = column % a.group_width, head = in / each;
    return column - in + (head % a.outer * a.inner + head / a.outer) * each + in % each;
}

DEVICE int gate_column(const TransformArgs& a, int column) {
    return a.gate_len ? column / a.gate_len * a.gate_every + a.gate_first + column % a.gate_len : column;
}
