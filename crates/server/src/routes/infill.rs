//! `/infill`: the text of a gap, in llama.cpp's shape.

use serde::Serialize;
use serde_json::json;
use tern::text::Part;

use super::deliver::{Prepared, Shape};
use crate::generation::delta::Delta;
use crate::generation::usage::Usage;
use crate::http::error::Result;
use crate::http::frames::Frames;
use crate::request::encode::Encoder;
use crate::request::gap::{Gap, SourceFile};
use crate::request::ignored::Object;
use crate::request::options::{Options, unparsed};
use crate::request::params::Params;
use crate::request::prepare::Preparation;
use crate::request::prompt::model_or_adapter;
use crate::request::text_request::TextRequest;

/// The text of a gap.
pub(super) struct Filled {
    model: String,
    /// With its markers.
    prompt: String,
    content: String,
    finish: Option<&'static str>,
}

pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Prepared<Filled>> {
    let Preparation { body, served, config, cancel, .. } = *preparation;
    let mut params = Params::parse(body, unparsed(config))?;
    params.rename("n_predict", "max_tokens");
    let model = model_or_adapter(&mut params, served)?;
    let mut before = params.string("input_prefix")?.unwrap_or_default();
    let after = params.string("input_suffix")?.unwrap_or_default();
    // text between the prefix and the gap
    before += &params.string("prompt")?.unwrap_or_default();
    let files = SourceFile::take(&mut params)?;
    let stream = params.bool("stream")?.unwrap_or(false);
    let options = Options::take(&mut params, served, config, &model)?;
    params.finish(Object::Body, &[])?;
    let encoder = Encoder::new(served, cancel, "input_prefix");
    let tokens = encoder.fill(&Gap { before, after, files }, config.fill_order)?;
    let prompt = served.model.tokenizer().decode(&tokens, true);
    let job = TextRequest { prompts: vec![&tokens], options, grammar: None }.job(&encoder)?;
    Ok(Prepared { job, shape: Filled { model, prompt, content: String::new(), finish: None }, stream })
}

impl Filled {
    fn text(&mut self, delta: Delta) -> String {
        self.finish = delta.finish.or(self.finish);
        let text = |part| match part {
            Part::Content(text) => Some(text),
            _ => None,
        };
        delta.parts.into_iter().filter_map(text).collect()
    }

    fn last(&self, content: &str, usage: Usage) -> serde_json::Value {
        let stop_type = if self.finish == Some("length") { "limit" } else { "eos" };
        json!({
            "content": content, "stop": true, "stop_type": stop_type, "model": self.model, "prompt": self.prompt,
            "tokens_predicted": usage.completion_tokens, "tokens_evaluated": usage.prompt_tokens,
        })
    }
}

impl Shape for Filled {
    fn add(&mut self, _at: usize, delta: Delta) {
        let text = self.text(delta);
        self.content.push_str(&text);
    }

    fn whole(&mut self, usage: Usage) -> impl Serialize {
        self.last(&self.content, usage)
    }

    fn piece(&mut self, _at: usize, delta: Delta, _usage: Usage, out: &mut Frames) {
        let text = self.text(delta);
        if !text.is_empty() {
            out.data(&json!({"content": text, "stop": false}));
        }
    }

    fn end(&mut self, usage: Usage, out: &mut Frames) {
        out.data(&self.last("", usage));
    }
}
