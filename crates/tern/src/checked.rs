//! A model that is read and checked and not yet on a device: its headers, vocabulary and template, and that
//! its tensors are those of its graph and inside its files.

use std::sync::Arc;
use std::time::Instant;

use tern_engine::Pooling;
use tern_formats::Metadata;
use tern_graph::Backend;
use tern_models::Model as Architecture;
use tern_text::{ChatTemplate, Tokenizer};

use crate::model::{ModelFacts, ModelParts, start_engine};
use crate::opened::OpenedModel;
use crate::progress::{Progress, check_stopped};
use crate::template_traits::{PROBING, TemplateTraits};
use crate::{Error, LoadOptions, Model, OpenedTower, PartialSampling, Reranker};

/// A model whose files were found to be whole. What may fail now is its device.
pub struct CheckedModel {
    opened: OpenedModel,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    template_traits: TemplateTraits,
    pooling: Pooling,
    reranker: Option<Reranker>,
    recommended: PartialSampling,
}

impl CheckedModel {
    /// Opens a model by name and checks it.
    pub fn open(name: &str, options: &LoadOptions, progress: &dyn Progress) -> Result<CheckedModel, Error> {
        CheckedModel::of(OpenedModel::open(name, options, progress)?, options, progress)
    }

    pub(crate) fn of(
        opened: OpenedModel,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<CheckedModel, Error> {
        check_stopped(&opened.name, progress)?;
        let tokenizer = Tokenizer::from_metadata(&opened.metadata)?;
        tokenizer.warnings().iter().for_each(|warning| progress.warn(warning));
        if let Some(count) = opened.metadata.optional_usize(tern_formats::ROUNDED)? {
            progress.warn(&format!(
                "{count} quantised matrices of the folder are run as F16, rounded: no format has their weights exactly"
            ));
        }
        let template = chat_template(&tokenizer, options.chat_template.as_deref())?;
        let template_traits = match &template {
            Some(template) => TemplateTraits::of(template).ok_or_else(|| Error::SlowTemplate {
                name: opened.name.clone(),
                seconds: PROBING.as_secs(),
            })?,
            None => TemplateTraits::default(),
        };
        let pooling = pooling(options.pooling, &opened.model, &opened.metadata)?;
        let reranker = Reranker::of(&opened.metadata, &opened.name, opened.model.vectors, &tokenizer)?;
        let recommended = PartialSampling::of_model(&opened.name, &opened.metadata).unwrap_or_else(|e| {
            progress.warn(&format!("ignored: {e}"));
            PartialSampling::default()
        });
        Ok(CheckedModel { opened, tokenizer, template, template_traits, pooling, reranker, recommended })
    }

    /// Bytes of all weights, which it will take at least.
    pub fn weight_bytes(&self) -> u64 {
        self.opened.weight_bytes() + self.opened.tower.as_ref().map_or(0, OpenedTower::weight_bytes)
    }

    /// Moves it to a device and starts its engine.
    pub fn start(
        self,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Model, Error> {
        self.start_since(Instant::now(), backend, options, progress)
    }

    pub(crate) fn start_since(
        self,
        start: Instant,
        backend: Box<dyn Backend>,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Model, Error> {
        let CheckedModel { opened, tokenizer, template, template_traits, pooling, reranker, recommended } =
            self;
        check_stopped(&opened.name, progress)?;
        let (name, adapters) = (opened.name.clone(), opened.adapters.files.clone());
        let facts = ModelFacts {
            arch: opened.model.config.arch.to_string(),
            format: opened.main_format(),
            parameters: opened.tensors.iter().map(|t| (t.rows() * t.cols()) as u64).sum(),
            context_trained: opened.model.config.context_trained,
            width: opened.model.config.width,
            memory: 0,
        };
        let images = match opened.tower.clone() {
            Some(tower) => Some(Arc::new(tower.encoder(&tokenizer, options.threads, options.images)?)),
            None => None,
        };
        let runs_ahead = backend.runs_ahead();
        let (handle, plan) = start_engine(opened, backend, options, progress)?;
        let facts = ModelFacts { memory: plan.total(), ..facts };
        let tokenizer = Arc::new(tokenizer);
        let parts = ModelParts {
            name,
            handle,
            tokenizer,
            template,
            pooling,
            reranker,
            recommended,
            adapters,
            images,
        };
        let model = Model::from_parts_after(start, parts, template_traits, Some(facts));
        Ok(model.with_drafts(options.speculation.drafts(options.draft_max, runs_ahead)))
    }
}

/// The given chat template, or the model's own if it has one.
fn chat_template(tokenizer: &Tokenizer, given: Option<&str>) -> Result<Option<ChatTemplate>, Error> {
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or("");
    let Some(source) = given.or(tokenizer.chat_template()) else { return Ok(None) };
    Ok(Some(ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))?))
}

/// The pooling of a model that computes vectors, or of one that generates text: the requested one, the file's
/// (3 is the last token), or the mean.
fn pooling(requested: Option<Pooling>, model: &Architecture, metadata: &Metadata) -> Result<Pooling, Error> {
    if let Some(vectors) = model.vectors {
        return Ok(vectors.pooling);
    }
    let file = metadata.optional_usize(&format!("{}.pooling_type", model.config.arch))?;
    Ok(requested.unwrap_or(if file == Some(3) { Pooling::Last } else { Pooling::Mean }))
}
