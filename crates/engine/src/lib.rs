//! Requests, scheduling, pages, sampling.
