//! The end of a model that computes vectors or scores instead of logits: which rows it
//! returns, and its classifier.

use tern_graph::{Function, NormKind, Pooling, Val};

use crate::{Build, ModelError};

/// What a model computes instead of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// How the rows of a text's tokens become its result.
    pub pooling: Pooling,
    /// What a row is.
    pub kind: VectorKind,
}

/// What a row of the result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorKind {
    /// An embedding of the text, or of the token.
    Embedding,
    /// One score per label of a classifier.
    Scores,
}

/// The `pooling_type` of a classifier, which reads the first token unless the architecture has a key for it.
const RANK: usize = 4;

impl Build<'_> {
    /// The requested pooling, or the file's `pooling_type` if it has one.
    pub(crate) fn vectors_of_file(&self) -> Result<Option<Vectors>, ModelError> {
        let keys = self.keys();
        let file = match keys.optional_usize("pooling_type")? {
            None => None,
            Some(RANK) => Some(Vectors { pooling: Pooling::Cls, kind: VectorKind::Scores }),
            Some(number) => match Pooling::ALL.get(number) {
                Some(&pooling) => Some(Vectors { pooling, kind: VectorKind::Embedding }),
                None => return Err(ModelError::value(keys.key("pooling_type"), number, "0 to 4")),
            },
        };
        let requested = |pooling| Vectors { pooling, kind: VectorKind::Embedding };
        Ok(self.pooling.map(requested).or(file))
    }

    /// Ends an encoder: `x` has a row per token, after the last norm. The default is the architecture's.
    pub(crate) fn pooled(&mut self, x: Val, default: Pooling) -> Result<(), ModelError> {
        let default = Vectors { pooling: default, kind: VectorKind::Embedding };
        let vectors = self.vectors_of_file()?.unwrap_or(default);
        let x = self.pooled_rows(x, vectors.pooling)?;
        if vectors.kind == VectorKind::Scores {
            return self.classifier(x, vectors.pooling, Function::Tanh);
        }
        self.vectors = Some(vectors);
        self.projections(x)
    }

    /// The rows of the result: for a mean it is the row of every token.
    pub(crate) fn pooled_rows(&mut self, x: Val, pooling: Pooling) -> Result<Val, ModelError> {
        Ok(if pooling == Pooling::Mean { self.graph.means(x)? } else { self.graph.outputs(x) })
    }

    /// Matrices that the pooled row is multiplied by, in some embedding models. The width of the result has
    /// its own key if there is one such matrix (ColBERT of LFM2).
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

    /// Scores of pooled rows: one hidden layer, if the file has one, and a score per label.
    pub(crate) fn classifier(
        &mut self,
        mut x: Val,
        pooling: Pooling,
        function: Function,
    ) -> Result<(), ModelError> {
        self.vectors = Some(Vectors { pooling, kind: VectorKind::Scores });
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
