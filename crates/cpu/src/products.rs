//! Small products of f32 matrices, for attention.

/// `c[r][j] += sum over i of a[r][i] * b[i][j]`, added up in the order of `i` for each result by itself.
pub(crate) struct Product<'a> {
    /// Rows of `a` and `c`.
    pub(crate) rows: usize,
    /// Columns of `a` and rows of `b`.
    pub(crate) inner: usize,
    /// Columns of `b` and `c`.
    pub(crate) cols: usize,
    pub(crate) a: &'a [f32],
    pub(crate) a_stride: usize,
    pub(crate) b: &'a [f32],
    pub(crate) b_stride: usize,
    pub(crate) c: &'a mut [f32],
    pub(crate) c_stride: usize,
}

impl Product<'_> {
    /// All of it, in tiles of up to four rows and `W` columns. `FUSED` rounds once for each product and sum.
    #[inline(always)]
    pub(crate) fn run<const W: usize, const FUSED: bool>(&mut self) {
        if self.rows == 0 || self.inner == 0 || self.cols == 0 {
            return;
        }
        let last = |stride: usize, rows: usize, cols: usize| (rows - 1) * stride + cols;
        assert!(self.a.len() >= last(self.a_stride, self.rows, self.inner));
        assert!(self.b.len() >= last(self.b_stride, self.inner, self.cols));
        assert!(self.c.len() >= last(self.c_stride, self.rows, self.cols));
        let mut row = 0;
        while row < self.rows {
            // SAFETY: sizes were checked above.
            unsafe {
                match self.rows - row {
                    1 => self.band::<1, W, FUSED>(row),
                    2 => self.band::<2, W, FUSED>(row),
                    3 => self.band::<3, W, FUSED>(row),
                    _ => self.band::<4, W, FUSED>(row),
                }
            }
            row += 4;
        }
    }

    /// `R` rows from `row` on.
    #[inline(always)]
    unsafe fn band<const R: usize, const W: usize, const FUSED: bool>(&mut self, row: usize) {
        let mut col = 0;
        // SAFETY: the caller's promise, and all columns are below `cols`.
        unsafe {
            while col + W <= self.cols {
                self.tile::<R, W, FUSED>(row, col);
                col += W;
            }
            while col + 8 <= self.cols {
                self.tile::<R, 8, FUSED>(row, col);
                col += 8;
            }
            while col < self.cols {
                self.tile::<R, 1, FUSED>(row, col);
                col += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const W: usize, const FUSED: bool>(&mut self, row: usize, col: usize) {
        // SAFETY: the caller's promise; arrays of floats have no other demands.
        unsafe {
            let c = self.c.as_mut_ptr().add(row * self.c_stride + col);
            let a = self.a.as_ptr().add(row * self.a_stride);
            let mut sums = [[0.0f32; W]; R];
            for r in 0..R {
                sums[r] = c.add(r * self.c_stride).cast::<[f32; W]>().read();
            }
            for i in 0..self.inner {
                let b = self.b.as_ptr().add(i * self.b_stride + col).cast::<[f32; W]>().read();
                for r in 0..R {
                    let a = *a.add(r * self.a_stride + i);
                    for w in 0..W {
                        sums[r][w] = if FUSED { a.mul_add(b[w], sums[r][w]) } else { a * b[w] + sums[r][w] };
                    }
                }
            }
            for r in 0..R {
                c.add(r * self.c_stride).cast::<[f32; W]>().write(sums[r]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_shapes_are_the_plain_sum() {
        let rng = &mut tern_graph::Random::new(2);
        for (rows, inner, cols) in [(1, 1, 1), (3, 5, 33), (4, 2, 16), (9, 7, 29), (2, 0, 8)] {
            let (a, b) = (rng.normals(rows * (inner + 2), 1.0), rng.normals(inner * (cols + 1), 1.0));
            let mut c = rng.normals(rows * (cols + 3), 1.0);
            let mut want = c.clone();
            for (r, j) in (0..rows * cols).map(|i| (i / cols, i % cols)) {
                for i in 0..inner {
                    want[r * (cols + 3) + j] += a[r * (inner + 2) + i] * b[i * (cols + 1) + j];
                }
            }
            let (a_stride, b_stride, c_stride) = (inner + 2, cols + 1, cols + 3);
            let (a, b, c_room) = (&a, &b, &mut c);
            Product { rows, inner, cols, a, a_stride, b, b_stride, c: c_room, c_stride }.run::<16, false>();
            assert_eq!(c, want);
        }
    }
}
