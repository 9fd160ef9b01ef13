//! Adapters on a model: each matrix is checked against the linear that it changes, and those of
//! all adapters are stacked.

use std::collections::{BTreeMap, HashSet};

use tern_formats::{Adapter, LowRank, shown};
use tern_graph::{AdaptedLinear, AdapterSet, HostTensor, Op};

use crate::tensor::host_tensor;
use crate::{Model, ModelError};

/// Ranks are multiples of this, so that rows of B are whole vectors.
const RANK_UNIT: usize = 8;

/// An adapter and its name, for errors.
pub type NamedAdapter<'a> = (&'a str, &'a Adapter);

impl Model {
    /// The adapters of this model's graph, numbered in order.
    pub fn adapters(&self, adapters: &[NamedAdapter<'_>]) -> Result<AdapterSet, ModelError> {
        // what each adapter changes in each linear
        let mut parts: BTreeMap<&str, Vec<Option<&LowRank>>> = BTreeMap::new();
        for (index, (name, adapter)) in adapters.iter().enumerate() {
            let wrong = |why: String| ModelError::Adapter { adapter: (*name).into(), why };
            for (weight, low_rank) in &adapter.linears {
                let weight = self.adapted_weight(weight, low_rank).map_err(wrong)?;
                let of_linear = parts.entry(weight).or_insert_with(|| vec![None; adapters.len()]);
                if of_linear[index].replace(low_rank).is_some() {
                    return Err(wrong(format!("{weight} has two matrices")));
                }
            }
        }
        let mut set = AdapterSet { count: adapters.len(), ..AdapterSet::default() };
        for (weight, parts) in parts {
            let ranks = parts.iter().flatten().map(|part| part.rank());
            let rank = ranks.max().unwrap_or(0).next_multiple_of(RANK_UNIT);
            let linear = AdaptedLinear { weight: weight.into(), rank };
            set.tensors.extend(stacked(&linear, &parts)?);
            set.linears.push(linear);
        }
        Ok(set)
    }

    /// The weight of the linear that matrices of an adapter are for.
    fn adapted_weight(&self, weight: &str, low_rank: &LowRank) -> Result<&str, String> {
        let linears: HashSet<&str> = self.weights_of(|op| matches!(op, Op::Linear { .. }));
        // a model without a separate head uses the embedding table again
        let tied = weight == "output.weight" && !linears.contains(weight);
        let name = if tied { "token_embd.weight" } else { weight };
        let experts = self.weights_of(|op| matches!(op, Op::ExpertLinear { .. }));
        let tables = self.weights_of(|op| matches!(op, Op::Embed { .. }));
        if experts.contains(name) {
            return Err(format!("{name}: adapters of experts are not supported"));
        }
        if tables.contains(name) && !tied {
            return Err(format!("{name}: adapters of embedding tables are not supported"));
        }
        let Some(name) = linears.get(name) else {
            let (weight, arch) = (shown(weight), self.arch.name);
            return Err(format!("{weight}: this `{arch}` model has no linear of this name"));
        };
        let Some(shape) = self.graph.weights.iter().find(|w| w.name == *name) else {
            return Err(format!("{name} is missing"));
        };
        let (want, file) = ([shape.rows, shape.cols], [low_rank.b.rows(), low_rank.a.cols()]);
        if want != file {
            return Err(format!("{name}: want an adapter of {want:?}, file has one of {file:?}"));
        }
        Ok(name)
    }

    /// Names of the matrices that some ops read.
    fn weights_of(&self, reads: impl Fn(&Op) -> bool) -> HashSet<&str> {
        let ops = self.graph.nodes.iter().map(|node| &node.op).filter(|op| reads(op));
        let first = ops.filter_map(|op| op.weights().into_iter().next());
        first.map(|(id, _)| self.graph.weight(id).name.as_str()).collect()
    }
}

/// A and B of all adapters of one linear; B has the scale from alpha and rank.
fn stacked(linear: &AdaptedLinear, parts: &[Option<&LowRank>]) -> Result<[HostTensor; 2], ModelError> {
    let (rank, width) = (linear.rank, parts.len() * linear.rank);
    let some = parts.iter().flatten().next();
    let (rows, cols) = some.map_or((0, 0), |part| (part.b.rows(), part.a.cols()));
    let mut a = vec![0.0; width * cols]; // [adapters * rank, cols]
    let mut b = vec![0.0; rows * width]; // [rows, adapters * rank]
    for (index, part) in parts.iter().enumerate() {
        let Some(part) = part else { continue };
        let own = part.rank();
        let (from_a, from_b) = (host_tensor(&part.a)?.to_f32(), host_tensor(&part.b)?.to_f32());
        a[index * rank * cols..][..own * cols].copy_from_slice(&from_a);
        for (to, from) in b.chunks_exact_mut(width).zip(from_b.chunks_exact(own)) {
            let to = &mut to[index * rank..][..own];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * part.scale);
        }
    }
    let tensor = |name: String, rows, cols, values: &[f32]| {
        let finite = values.iter().all(|v| v.is_finite());
        let wrong = || ModelError::AdapterNotFinite(name.clone());
        finite.then(|| HostTensor::from_f32(&name, rows, cols, values)).ok_or_else(wrong)
    };
    Ok([tensor(linear.a(), width, cols, &a)?, tensor(linear.b(), rows, width, &b)?])
}
