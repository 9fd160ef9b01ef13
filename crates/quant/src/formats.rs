//! The formats themselves: one file per layout of blocks or family of layouts, each with its
//! [`Quant`](crate::Quant) values.

mod codebook;
mod float;
mod fp4;
mod int4;
mod iq4;
mod named;
mod planes;
mod q1;
mod q2;
mod q2_k;
mod q3_k;
mod q4;
mod q4_k;
mod q5;
mod q6_k;
mod q8;
mod trits;

pub use codebook::{Codebook, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};
pub use codebook::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
pub use float::{BF16, F16, F32};
pub use fp4::{MXFP4, NVFP4};
pub use int4::{INT4_32, INT4_128};
pub use iq4::{IQ4_NL, IQ4_XS};
pub use named::{F64, I8, I16, I32, I64, Q8_1, Q8_K};
pub use planes::{I2_S, TQ2_0};
pub use q1::Q1_0;
pub use q2::{PQ2_0, Q2_0, Q2_0_G128, TQ2_0_G128};
pub use q2_k::Q2_K;
pub use q3_k::Q3_K;
pub use q4::{Q4_0, Q4_1};
pub use q4_k::{Q4_K, Q5_K};
pub use q5::{Q5_0, Q5_1};
pub use q6_k::Q6_K;
pub use q8::Q8_0;
pub use trits::{PTQ1_0, TQ1_0};
