//! Images of requests: data URIs, base64 and URLs, in the shapes of the APIs.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde_json::Value;
use tern::engine::{EngineError, Images};
use tern::{Error, RenderedChat};

use crate::http::error::{ApiError, Result};
use crate::request::encode::Encoder;
use crate::request::ignored::Object;
use crate::request::named_images::NamedImages;
use crate::request::params::Params;

/// The code of errors about images that cannot be used.
pub(crate) const INVALID: &str = "invalid_image";

/// Hints of the OpenAI API about the resolution. The size follows from the model.
const DETAILS: [&str; 4] = ["auto", "low", "high", "original"];

/// The file in a data URI, or at a URL that the server may read.
fn of_url(url: &str, name: &str, named: &NamedImages) -> Result<Arc<[u8]>> {
    let Some(rest) = url.get(..5).filter(|scheme| scheme.eq_ignore_ascii_case("data:")).map(|_| &url[5..])
    else {
        return named.file(url, name);
    };
    let Some((kind, data)) = rest.split_once(',') else {
        return Err(ApiError::bad(name, format!("{name}: the data URI has no comma before its data")));
    };
    let mut kind = kind.split(';');
    media_type(kind.next().unwrap_or_default(), name)?;
    if !kind.any(|parameter| parameter.eq_ignore_ascii_case("base64")) {
        return Err(ApiError::bad(name, format!("{name}: the data URI must be in base64")));
    }
    of_base64(data, name)
}

/// Refuses types of other media. What an image is in is seen from its bytes.
pub(crate) fn media_type(given: &str, name: &str) -> Result<()> {
    if given.to_ascii_lowercase().starts_with("image/") {
        return Ok(());
    }
    Err(ApiError::expected(name, "the media type of an image, such as image/png", &given.into()))
}

/// A file in base64, with or without padding.
pub(crate) fn of_base64(data: &str, name: &str) -> Result<Arc<[u8]>> {
    let data = data.trim();
    let engine =
        if data.ends_with('=') || data.len().is_multiple_of(4) { &STANDARD } else { &STANDARD_NO_PAD };
    match engine.decode(data) {
        Ok(bytes) if bytes.is_empty() => Err(ApiError::bad(name, format!("{name}: the image is empty"))),
        Ok(bytes) => Ok(bytes.into()),
        Err(why) => Err(ApiError::bad(name, format!("{name}: invalid base64: {why}"))),
    }
}

/// The image of an `image_url` part: an object with `url` and `detail`, or the URL itself.
pub(crate) fn of_part(part: &mut Params) -> Result<Arc<[u8]>> {
    match part.take("image_url") {
        Some(Value::String(url)) => {
            part.string("detail")?;
            of_url(&url, &part.name("image_url"), part.images())
        }
        Some(object @ Value::Object(_)) => {
            let mut object = part.nested(object, &part.name("image_url"))?;
            let url = object.required_string("url")?;
            let (name, detail) = (object.name("url"), object.string("detail")?);
            if let Some(detail) = detail.filter(|detail| !DETAILS.contains(&detail.as_str())) {
                let expected = format!("one of {}", DETAILS.join(", "));
                return Err(ApiError::expected(&object.name("detail"), expected, &detail.into()));
            }
            object.finish(Object::Part, &[])?;
            of_url(&url, &name, part.images())
        }
        None => Err(part.missing("image_url")),
        Some(other) => Err(ApiError::expected(&part.name("image_url"), "an object or a string", &other)),
    }
}

/// The image of Anthropic's `source`.
pub(crate) fn of_source(block: &mut Params) -> Result<Arc<[u8]>> {
    let missing = block.missing("source");
    let mut source = block.object("source")?.ok_or(missing)?;
    let kind = source.required_string("type")?;
    let image = match kind.as_str() {
        "base64" => {
            media_type(&source.required_string("media_type")?, &source.name("media_type"))?;
            of_base64(&source.required_string("data")?, &source.name("data"))?
        }
        "url" => of_url(&source.required_string("url")?, &source.name("url"), source.images())?,
        _ => return Err(ApiError::expected(&source.name("type"), "\"base64\" or \"url\"", &kind.into())),
    };
    source.finish(Object::Part, &[])?;
    Ok(image)
}

/// An image of Ollama: base64, or a URL.
pub(crate) fn of_ollama(image: &Value, name: &str, named: &NamedImages) -> Result<Arc<[u8]>> {
    match image {
        Value::String(data) if data.contains(':') => of_url(data, name, named),
        Value::String(data) => of_base64(data, name),
        other => Err(ApiError::expected(name, "a string of base64", other)),
    }
}

/// The tokens of a conversation and the rows of its images. Waits while these are computed.
pub(crate) fn encode(rendered: &mut RenderedChat, encoder: &Encoder<'_>) -> Result<(Vec<u32>, Images)> {
    let model = &encoder.served.model;
    let cancelled = || encoder.cancel.is_cancelled();
    let rows = model.expand_images(&mut rendered.text, &rendered.images, cancelled).map_err(|e| match e {
        Error::Cancelled => encoder.cancel.error(),
        Error::Engine(e @ EngineError::Context { .. }) => e.into(),
        Error::Engine(_) | Error::Backend(_) => ApiError::internal(),
        e @ Error::DoesNotSee(_) => ApiError::bad(encoder.param, e.to_string()).code("images_not_supported"),
        e => ApiError::bad(encoder.param, e.to_string()).code(INVALID),
    })?;
    let mut tokens = encoder.chat(&rendered.text)?;
    let images = model.place_images(&mut tokens, &rows);
    Ok((tokens, images.map_err(|e| ApiError::bad(encoder.param, e.to_string()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_uri_is_read_and_all_else_refused() {
        let read = |url: &str| of_url(url, "u", &NamedImages::default()).map_err(|e| e.message);
        assert_eq!(read("data:image/png;base64,AQID").as_deref(), Ok(&[1, 2, 3][..]));
        assert_eq!(read("DATA:IMAGE/PNG;BASE64,AQI").as_deref(), Ok(&[1, 2][..]));
        assert_eq!(read("data:image/png;charset=x;base64,AQI=").as_deref(), Ok(&[1, 2][..]));
        for (url, want) in [
            ("http://169.254.169.254/", "u: expected a data URI"),
            ("file:///etc/passwd", "u: expected a data URI"),
            ("", "u: expected a data URI"),
            ("dätä:", "u: expected a data URI"),
            ("data:image/png;base64", "u: the data URI has no comma"),
            ("data:text/html;base64,AQID", "u: expected the media type of an image"),
            ("data:image/png,AQID", "u: the data URI must be in base64"),
            ("data:image/png;base64,", "u: the image is empty"),
            ("data:image/png;base64,A!ID", "u: invalid base64"),
        ] {
            let message = read(url).unwrap_err();
            assert!(message.starts_with(want), "{url}: {message}");
        }
    }
}
