//! The end of a model that computes vectors or scores instead of logits: which rows it returns, and its classifier.

use tern_graph::{Function, NormKind, Val};

use crate::{Build, ModelError};

/// What a model computes instead of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// The tokens of a text whose rows are the result.
    pub rows: VectorRows,
    /// What a row is.
    pub kind: VectorKind,
}

/// Tokens of a text whose rows are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorRows {
    /// The first one.
    First,
    /// The last one; a mean of all tokens is its row too.
    Last,
    /// All of them.
    Each,
}

/// What a row of the result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorKind {
    /// An embedding of the text, or of the token.
    Embedding,
    /// One score per label of a classifier.
    Scores,
}

/// How the rows of a text become one: the numbers are those of `pooling_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// 0: they do not.
    None,
    /// 1
    Mean,
    /// 2: the first.
    Cls,
    /// 3
    Last,
    /// 4: a classifier.
    Rank,
}

impl Build<'_> {
    /// The file's `pooling_type`, if it has one.
    pub(crate) fn pooling(&self) -> Result<Option<Pooling>, ModelError> {
        let keys = self.keys();
        Ok(Some(match keys.optional_usize("pooling_type")? {
            None => return Ok(None),
            Some(0) => Pooling::None,
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(3) => Pooling::Last,
            Some(4) => Pooling::Rank,
            Some(other) => {
                return Err(ModelError::value(keys.key("pooling_type"), other, "0 to 4"));
            }
        }))
    }

    /// Ends an encoder: `x` has a row per token, after the last norm. The default is the architecture's.
    pub(crate) fn pooled(&mut self, x: Val, default: Pooling) -> Result<(), ModelError> {
        let pooling = self.pooling()?.unwrap_or(default);
        let rows = match pooling {
            Pooling::None => VectorRows::Each,
            Pooling::Cls | Pooling::Rank => VectorRows::First,
            Pooling::Mean | Pooling::Last => VectorRows::Last,
        };
        if pooling == Pooling::Rank {
            let x = self.graph.outputs(x);
            return self.classifier(x, rows, Function::Tanh);
        }
        let x = if pooling == Pooling::Mean { self.graph.means(x)? } else { self.graph.outputs(x) };
        self.vectors = Some(Vectors { rows, kind: VectorKind::Embedding });
        self.projections(x)
    }

    /// Matrices behind the pooled row, which some embedding models have. The width of the result has its own key if there is one
    /// such matrix (ColBERT of LFM2).
    fn projections(&mut self, mut x: Val) -> Result<(), ModelError> {
        let width = self.keys().optional_usize("embedding_length_out")?;
        for name in ["dense_2", "dense_3"] {
            if self.has(&format!("{name}.weight")) {
                let out = match width {
                    Some(width) => width,
                    None => self.keys().usize(&format!("{name}_feat_out"))?,
                };
                x = self.linear(x, name, out)?;
            }
        }
        Ok(())
    }

    /// Scores of the requested rows: one hidden layer, if the file has one, and a score per label.
    pub(crate) fn classifier(
        &mut self,
        mut x: Val,
        rows: VectorRows,
        function: Function,
    ) -> Result<(), ModelError> {
        self.vectors = Some(Vectors { rows, kind: VectorKind::Scores });
        let width = self.config.width;
        let labels = self.labels()?;
        let has_output = self.has("cls.output.weight");
        if !has_output && !self.has("cls.weight") {
            return Err(ModelError::NoClassifier);
        }
        if self.has("cls.weight") {
            x = self.linear(x, "cls", if has_output { width } else { labels })?;
            if has_output {
                x = self.graph.apply(x, function);
            }
            if self.has("cls.norm.weight") {
                x = self.layer_norm(x, "cls.norm", width)?;
            }
        }
        if has_output {
            self.linear(x, "cls.output", labels)?;
        }
        Ok(())
    }

    /// Labels of the classifier: 1 if the file does not name them.
    fn labels(&self) -> Result<usize, ModelError> {
        let keys = self.keys();
        let names = keys.optional_strings("classifier.output_labels")?;
        Ok(names.map_or(1, |names| names.len().max(1)))
    }

    /// A layer norm over groups of `len` columns, with a bias if the source has it.
    pub(crate) fn layer_norm(&mut self, x: Val, name: &str, len: usize) -> Result<Val, ModelError> {
        let weight = self.graph.vector(format!("{name}.weight"), len)?;
        let bias = self.optional_vector(format!("{name}.bias"), len)?;
        Ok(self.graph.norm_of_kind(x, weight, bias, self.config.eps, NormKind::Layer)?)
    }
}
