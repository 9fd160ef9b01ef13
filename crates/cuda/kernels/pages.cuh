// Where keys and values are in pages of PAGE_LEN tokens.

// The index of the key of one head at a position that is in this page.
DEVICE long slot_in(const AttendArgs& a, u32 page, int position, int head) {
    return ((long)page * a.kv_heads + head) * PAGE_LEN + position % PAGE_LEN;
}
DEVICE long slot_of(const AttendArgs& a, const u32* pages, int position, int head) {
    return slot_in(a, pages[position / PAGE_LEN], position, head);
}
