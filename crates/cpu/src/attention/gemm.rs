//! Small products of f32 matrices with the cells of a KV page, for attention.

use crate::vectors::{Cell, MOST_ROWS, Vector};

/// `c[r][j] = sum over i of a[r][i] * b[i][j]`, summed in the order of `i` for each result.
pub(crate) struct Gemm<'a, C> {
    /// Rows of `a` and `c`.
    pub(crate) rows: usize,
    /// Columns of `a` and rows of `b`.
    pub(crate) inner: usize,
    /// Columns of `b` and `c`.
    pub(crate) cols: usize,
    pub(crate) a: &'a [f32],
    pub(crate) a_stride: usize,
    pub(crate) b: &'a [C],
    pub(crate) b_stride: usize,
    /// What is read after `b`, in the same layout: prefetched only.
    pub(crate) next: *const C,
    pub(crate) c: &'a mut [f32],
    pub(crate) c_stride: usize,
    /// Sums start with the values of `c` instead of zero.
    pub(crate) add: bool,
}

impl<C: Cell> Gemm<'_, C> {
    /// Computes `c` in tiles of some rows and two vectors, or of half as many rows and four vectors.
    ///
    /// # Safety
    /// The processor has the instruction set of `V`.
    #[inline(always)]
    pub(crate) unsafe fn run<V: Vector>(&mut self) {
        if self.rows == 0 || self.inner == 0 || self.cols == 0 {
            return;
        }
        let last = |stride: usize, rows: usize, cols: usize| (rows - 1) * stride + cols;
        assert!(self.a.len() >= last(self.a_stride, self.rows, self.inner));
        assert!(self.b.len() >= last(self.b_stride, self.inner, self.cols));
        assert!(self.c.len() >= last(self.c_stride, self.rows, self.cols));
        const { assert!(V::ROWS <= MOST_ROWS) };
        let each = self.rows.div_ceil(self.rows.div_ceil(V::ROWS)); // bands of about equal size
        let mut row = 0;
        while row < self.rows {
            let rows = each.min(self.rows - row);
            // SAFETY: sizes were checked above; the contract.
            unsafe {
                match rows {
                    1 => self.band::<1, V>(row),
                    2 => self.band::<2, V>(row),
                    3 => self.band::<3, V>(row),
                    4 => self.band::<4, V>(row),
                    5 if V::ROWS >= 5 => self.band::<5, V>(row),
                    6 if V::ROWS >= 6 => self.band::<6, V>(row),
                    7 if V::ROWS >= 7 => self.band::<7, V>(row),
                    _ if V::ROWS >= 8 => self.band::<8, V>(row),
                    _ => unreachable!("a band has at most {} rows", V::ROWS),
                }
            }
            row += rows;
        }
    }

    /// `R` rows from `row` on.
    ///
    /// # Safety
    /// That of [`Gemm::run`], whose checks were made, and there are these rows.
    #[inline(always)]
    unsafe fn band<const R: usize, V: Vector>(&mut self, row: usize) {
        let mut col = 0;
        // SAFETY: the contract: and all columns are below `cols`.
        unsafe {
            while R <= V::ROWS / 2 && col + 4 * V::LEN <= self.cols {
                self.tile::<R, 4, V>(row, col);
                col += 4 * V::LEN;
            }
            while col + 2 * V::LEN <= self.cols {
                self.tile::<R, 2, V>(row, col);
                col += 2 * V::LEN;
            }
            while col + V::LEN <= self.cols {
                self.tile::<R, 1, V>(row, col);
                col += V::LEN;
            }
            while col < self.cols {
                self.column::<R, V>(row, col);
                col += 1;
            }
        }
    }

    /// `R` rows of `N` vectors.
    ///
    /// # Safety
    /// That of `band`, and there are these columns.
    #[inline(always)]
    unsafe fn tile<const R: usize, const N: usize, V: Vector>(&mut self, row: usize, col: usize) {
        // SAFETY: the contract; `next` is only prefetched.
        unsafe {
            let a = self.a.as_ptr().add(row * self.a_stride);
            let (mut b, mut next) = (self.b.as_ptr().add(col), self.next.wrapping_add(col));
            let c = self.c.as_mut_ptr().add(row * self.c_stride + col);
            let mut sums = [[V::splat(0.0); N]; R];
            if self.add {
                for r in 0..R {
                    for n in 0..N {
                        sums[r][n] = V::load(c.add(r * self.c_stride + n * V::LEN));
                    }
                }
            }
            for i in 0..self.inner {
                for n in (0..N).step_by(2) {
                    V::ask(next.wrapping_add(n * V::LEN));
                }
                let mut cells = [V::splat(0.0); N];
                for n in 0..N {
                    cells[n] = C::load::<V>(b.add(n * V::LEN));
                }
                for r in 0..R {
                    let a = V::splat(*a.add(r * self.a_stride + i));
                    for n in 0..N {
                        sums[r][n] = a.mul_add(cells[n], sums[r][n]);
                    }
                }
                (b, next) = (b.wrapping_add(self.b_stride), next.wrapping_add(self.b_stride));
            }
            for r in 0..R {
                for n in 0..N {
                    sums[r][n].store(c.add(r * self.c_stride + n * V::LEN));
                }
            }
        }
    }

    /// `R` rows of a column that fills no vector.
    ///
    /// # Safety
    /// That of `band`.
    #[inline(always)]
    unsafe fn column<const R: usize, V: Vector>(&mut self, row: usize, col: usize) {
        for r in row..row + R {
            let c = &mut self.c[r * self.c_stride + col];
            let mut sum = if self.add { *c } else { 0.0 };
            for i in 0..self.inner {
                let b = self.b[i * self.b_stride + col].float();
                sum = V::mul_add_one(self.a[r * self.a_stride + i], b, sum);
            }
            *c = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::Plain;

    #[test]
    fn odd_shapes_are_the_plain_sum() {
        let rng = &mut tern_graph::Random::new(2);
        for (rows, inner, cols) in [(1, 1, 1), (3, 5, 33), (4, 2, 16), (9, 7, 29), (2, 0, 8)] {
            let a = rng.normals(rows * (inner + 2), 1.0);
            let b: Vec<i8> = (0..inner * (cols + 1)).map(|_| rng.below(255) as i8).collect();
            let c = rng.normals(rows * (cols + 3), 1.0);
            for add in [false, true] {
                let (mut got, mut want) = (c.clone(), c.clone());
                for (r, j) in (0..rows * cols).map(|i| (i / cols, i % cols)).filter(|_| inner > 0) {
                    let c = &mut want[r * (cols + 3) + j];
                    *c = if add { *c } else { 0.0 };
                    (0..inner).for_each(|i| *c += a[r * (inner + 2) + i] * b[i * (cols + 1) + j].float());
                }
                let (a_stride, b_stride, c_stride) = (inner + 2, cols + 1, cols + 3);
                let (a, b, next, c) = (&a, &b, b.as_ptr(), &mut got);
                let mut product =
                    Gemm { rows, inner, cols, a, a_stride, b, b_stride, next, c, c_stride, add };
                // SAFETY: plain vectors are everywhere.
                unsafe { product.run::<Plain>() };
                assert_eq!(got, want);
            }
        }
    }
}
