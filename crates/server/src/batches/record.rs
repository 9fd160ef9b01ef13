//! What is known of a batch, in the shape of OpenAI's API.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::batch::{BatchCounts, LineError};
use crate::ids;
use crate::request::prompt::now;

/// How long a batch may take, in seconds: the only window that OpenAI has.
const WINDOW: u64 = 24 * 3600;

/// What a client asks for.
pub(crate) struct NewBatch {
    pub(crate) input_file_id: String,
    pub(crate) endpoint: &'static str,
    pub(crate) metadata: Option<Map<String, Value>>,
    /// How long the results are kept.
    pub(crate) keep_results: Option<u64>,
}

/// The state of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Validating,
    InProgress,
    Finalizing,
    Completed,
    Failed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Status::Validating => "validating",
            Status::InProgress => "in_progress",
            Status::Finalizing => "finalizing",
            Status::Completed => "completed",
            Status::Failed => "failed",
            Status::Expired => "expired",
            Status::Cancelling => "cancelling",
            Status::Cancelled => "cancelled",
        }
    }
}

/// Numbers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestCounts {
    pub(crate) total: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
}

impl From<BatchCounts> for RequestCounts {
    fn from(counts: BatchCounts) -> RequestCounts {
        let BatchCounts { total, completed, failed, .. } = counts;
        RequestCounts { total, completed, failed }
    }
}

/// A batch, as it is on disk. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub(crate) id: String,
    /// The digest of the API key that it belongs to.
    pub(crate) owner: String,
    pub(crate) endpoint: String,
    pub(crate) errors: Vec<Value>,
    pub(crate) input_file_id: String,
    pub(crate) status: Status,
    pub(crate) output_file_id: Option<String>,
    pub(crate) error_file_id: Option<String>,
    pub(crate) created_at: u64,
    pub(crate) in_progress_at: Option<u64>,
    pub(crate) expires_at: u64,
    pub(crate) finalizing_at: Option<u64>,
    pub(crate) completed_at: Option<u64>,
    pub(crate) failed_at: Option<u64>,
    pub(crate) expired_at: Option<u64>,
    pub(crate) cancelling_at: Option<u64>,
    pub(crate) cancelled_at: Option<u64>,
    pub(crate) request_counts: RequestCounts,
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Seconds that the results are kept.
    pub(crate) keep_results: Option<u64>,
    /// The status that it gets once its results are files.
    pub(crate) ending: Option<Status>,
}

impl BatchRecord {
    /// A batch that is made now.
    pub(crate) fn new(owner: &str, new: NewBatch) -> BatchRecord {
        let created_at = now();
        BatchRecord {
            id: ids::id("batch_"),
            owner: owner.to_owned(),
            endpoint: new.endpoint.to_owned(),
            errors: vec![],
            input_file_id: new.input_file_id,
            status: Status::Validating,
            output_file_id: None,
            error_file_id: None,
            created_at,
            in_progress_at: None,
            expires_at: created_at + WINDOW,
            finalizing_at: None,
            completed_at: None,
            failed_at: None,
            expired_at: None,
            cancelling_at: None,
            cancelled_at: None,
            request_counts: RequestCounts::default(),
            metadata: new.metadata,
            keep_results: new.keep_results,
            ending: None,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.status, Status::Completed | Status::Failed | Status::Expired | Status::Cancelled)
    }

    /// Ends it with this status.
    pub(super) fn end(&mut self, status: Status) {
        self.status = status;
        let at = match status {
            Status::Completed => &mut self.completed_at,
            Status::Expired => &mut self.expired_at,
            Status::Cancelled => &mut self.cancelled_at,
            _ => &mut self.failed_at,
        };
        *at = Some(now());
    }

    /// The object of the API.
    pub(crate) fn json(&self) -> Value {
        let mut object = serde_json::to_value(self).unwrap_or_default();
        if let Value::Object(object) = &mut object {
            for private in ["owner", "keep_results", "ending"] {
                object.shift_remove(private);
            }
            if !self.has_ended() {
                // they are not files yet
                object.insert("output_file_id".into(), Value::Null);
                object.insert("error_file_id".into(), Value::Null);
            }
            let errors = (!self.errors.is_empty()).then(|| json!({"object": "list", "data": self.errors}));
            object.insert("errors".into(), json!(errors));
            object.insert("object".into(), "batch".into());
            object.insert("completion_window".into(), "24h".into());
        }
        object
    }
}

/// An error of a line, as the API has it.
pub(super) fn line_error(error: &LineError) -> Value {
    let LineError { line, code, param, message } = error;
    json!({"code": code, "line": line, "message": message, "param": param})
}
