//! What form of answer a client wants, by its `Accept` header: [`Wanted`].

use objects::table::TableVersion;

use crate::refusal::Refusal;
use crate::reply::{JSON, PROTOBUF, YAML};

/// The form objects are sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are.
    Plain,
    Table,
    /// Only the metadata of one object.
    PartialMetadata,
    PartialMetadataList,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub form: Form,
    pub content_type: &'static str,
    /// Of the group tables and partial objects belong to.
    pub version: TableVersion,
}

impl Wanted {
    pub(crate) const PLAIN: Wanted =
        Wanted { form: Form::Plain, content_type: JSON, version: TableVersion::V1 };

    /// The first alternative of the header that we can serve.
    pub(crate) fn of(accept: &str) -> Result<Wanted, Refusal> {
        if accept.trim().is_empty() {
            return Ok(Wanted::PLAIN);
        }
        accept.split(',').find_map(alternative).ok_or_else(|| {
            Refusal::not_acceptable(
                "only the following media types are accepted: application/json, application/yaml, \
                 application/vnd.kubernetes.protobuf, application/json;as=Table;v=v1;g=meta.k8s.io",
            )
        })
    }

    #[must_use]
    pub(crate) fn is_yaml(&self) -> bool {
        self.content_type == YAML
    }

    #[must_use]
    pub(crate) fn is_protobuf(&self) -> bool {
        self.content_type == PROTOBUF
    }
}

fn alternative(text: &str) -> Option<Wanted> {
    let mut parts = text.split(';').map(str::trim);
    let content_type = match parts.next()? {
        "application/json" | "*/*" | "application/*" => JSON,
        "application/yaml" => YAML,
        objects::protobuf::MEDIA_TYPE => PROTOBUF,
        _ => return None,
    };
    let (mut form, mut group, mut version) = (None, "meta.k8s.io", "v1");
    for parameter in parts {
        match parameter.split_once('=') {
            // Cells of a table can be anything, which protobuf cannot say.
            Some(("as", "Table")) if content_type == PROTOBUF => return None,
            Some(("as", "Table")) => form = Some(Form::Table),
            Some(("as", "PartialObjectMetadata")) => form = Some(Form::PartialMetadata),
            Some(("as", "PartialObjectMetadataList")) => form = Some(Form::PartialMetadataList),
            Some(("as", _)) => return None,
            Some(("g", given)) => group = given,
            Some(("v", given)) => version = given,
            Some(("stream", given)) if given != "watch" => return None,
            _ => {}
        }
    }
    let version = match version {
        "v1" => TableVersion::V1,
        "v1beta1" => TableVersion::V1Beta1,
        _ => return None,
    };
    match form {
        Some(form) if group == "meta.k8s.io" => Some(Wanted { form, content_type, version }),
        Some(_) => None,
        None => Some(Wanted { form: Form::Plain, content_type, version }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_we_have_is_taken() {
        let form = |accept| Wanted::of(accept).map(|wanted| wanted.form).ok();
        assert_eq!(form(""), Some(Form::Plain));
        assert_eq!(form("*/*"), Some(Form::Plain));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(form(table), Some(Form::Table));
        assert_eq!(
            form("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"),
            Some(Form::Plain)
        );
        let wanted = |accept| Wanted::of(accept).unwrap();
        assert!(wanted("application/vnd.kubernetes.protobuf,application/json").is_protobuf());
        assert!(wanted("application/vnd.kubernetes.protobuf;stream=watch").is_protobuf());
        assert!(!wanted("application/json,application/vnd.kubernetes.protobuf").is_protobuf());
        let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(form(table), None);
        let metadata =
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        assert_eq!(form(metadata), Some(Form::PartialMetadata));
        assert_eq!(form("text/html"), None);
        assert!(Wanted::of("application/yaml").unwrap().is_yaml());
    }
}
