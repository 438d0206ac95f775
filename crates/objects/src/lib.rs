//! Kubernetes objects as Berth serves them: kinds, quantities, defaulting, validation.
