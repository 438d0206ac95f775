//! The response format that a client accepts, by its `Accept` header: [`AcceptedFormat`].

use objects::table::TableVersion;

use crate::error::ApiError;
use crate::reply::{JSON, PROTOBUF, YAML};

/// The representation that objects are sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Representation {
    /// The object itself.
    Plain,
    Table,
    /// Only the metadata of one object.
    PartialMetadata,
    PartialMetadataList,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptedFormat {
    pub representation: Representation,
    pub content_type: &'static str,
    /// The version of the group that tables and partial objects belong to.
    pub version: TableVersion,
}

impl AcceptedFormat {
    pub(crate) const PLAIN: AcceptedFormat = AcceptedFormat {
        representation: Representation::Plain,
        content_type: JSON,
        version: TableVersion::V1,
    };

    /// Returns the served alternative of the header that the client prefers.
    pub(crate) fn parse(accept: &str) -> Result<AcceptedFormat, ApiError> {
        AcceptedFormat::among(accept, |_| true)
    }

    /// As [`AcceptedFormat::parse`], for kinds without a table.
    pub(crate) fn parse_without_table(accept: &str) -> Result<AcceptedFormat, ApiError> {
        AcceptedFormat::among(accept, |representation| representation != Representation::Table)
    }

    fn among(
        accept: &str,
        is_served: fn(Representation) -> bool,
    ) -> Result<AcceptedFormat, ApiError> {
        if accept.is_empty() {
            return Ok(AcceptedFormat::PLAIN);
        }
        let clauses = AcceptClause::sorted(accept);
        let mut served = clauses.iter().filter_map(AcceptClause::format);
        served.find(|format| is_served(format.representation)).ok_or_else(|| not_among(&NOTATIONS))
    }

    /// As [`AcceptedFormat::parse`], for watches.
    pub(crate) fn parse_stream(accept: &str) -> Result<AcceptedFormat, ApiError> {
        let format = AcceptedFormat::parse(accept)?;
        match format.is_yaml() {
            true => Err(not_among(&STREAMS)),
            false => Ok(format),
        }
    }

    /// As [`AcceptedFormat::parse`], for documents without other representations.
    pub(crate) fn parse_plain(accept: &str) -> Result<AcceptedFormat, ApiError> {
        AcceptedFormat::among(accept, |representation| representation == Representation::Plain)
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

/// The media types of objects.
const NOTATIONS: [&str; 3] = [JSON, YAML, PROTOBUF];
/// The media types of watches.
const STREAMS: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

fn not_among(accepted: &[&str]) -> ApiError {
    let accepted = accepted.join(", ");
    ApiError::not_acceptable(format!("only the following media types are accepted: {accepted}"))
}

/// Returns the media type of an aggregated discovery document, if the header asks for one.
pub(crate) fn aggregated_discovery(accept: &str) -> Option<&'static str> {
    let required = [("g", "apidiscovery.k8s.io"), ("v", "v2"), ("as", "APIGroupDiscoveryList")];
    let clauses = AcceptClause::sorted(accept);
    let clause = clauses.iter().find(|clause| {
        clause.is_plain_stream()
            && required.iter().all(|(name, value)| clause.parameter(name) == Some(*value))
            && NOTATIONS.iter().any(|notation| clause.names(notation))
    })?;
    NOTATIONS.into_iter().find(|notation| clause.names(notation))
}

/// Returns the served media type that the header prefers, without regard to parameters.
pub(crate) fn preferred<'a>(accept: &str, served: &[&'a str]) -> Option<&'a str> {
    let accept = if accept.is_empty() { "*/*" } else { accept };
    let clauses = AcceptClause::sorted(accept);
    clauses.iter().find_map(|clause| served.iter().find(|media| clause.names(media)).copied())
}

/// The kind of a path, by the media types it can respond with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Objects,
    /// Lists, which can be watched.
    Lists,
    /// Documents that are only available as JSON.
    Json,
}

/// Rejects a header without a media type that the path serves, before the rest of the header is
/// evaluated. Upstream's router does so, and matches full names only.
pub(crate) fn check_route(accept: &str, route: Route) -> Result<(), ApiError> {
    let produced: &[&str] = match route {
        Route::Objects | Route::Lists => &NOTATIONS,
        Route::Json => &[JSON],
    };
    let fits = |clause: &str| {
        let media = clause.split(';').next().unwrap_or_default().trim();
        media == "*/*" || produced.contains(&media)
    };
    if accept.is_empty() || accept.split(',').any(fits) {
        return Ok(());
    }
    let mut available = produced.to_vec();
    if route == Route::Lists {
        available.extend(STREAMS);
    }
    let available = available.join(", ");
    let message = format!("406: Not Acceptable\n\nAvailable representations: {available}");
    Err(ApiError::not_acceptable(message).with_details(serde_json::json!({})))
}

/// One alternative of the header.
struct AcceptClause<'a> {
    media: (&'a str, &'a str),
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> AcceptClause<'a> {
    fn parse(text: &'a str) -> Option<AcceptClause<'a>> {
        let mut parts = text.split(';').map(str::trim);
        let media = match parts.next()? {
            "*" => ("*", "*"),
            media => media.split_once('/')?,
        };
        let mut clause = AcceptClause { media, quality: 1.0, parameters: Vec::new() };
        for (name, value) in parts.filter_map(|subresource| subresource.split_once('=')) {
            match (name.trim(), value.trim()) {
                ("q", value) => clause.quality = value.parse().unwrap_or(0.0),
                parameter => clause.parameters.push(parameter),
            }
        }
        Some(clause)
    }

    /// Returns the alternatives of a header, the preferred one first.
    fn sorted(accept: &'a str) -> Vec<AcceptClause<'a>> {
        let mut clauses: Vec<AcceptClause<'a>> =
            accept.split(',').filter_map(AcceptClause::parse).collect();
        clauses.sort_by(AcceptClause::order);
        clauses
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        let found = self.parameters.iter().rfind(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    /// Reports whether the clause asks for no stream other than a watch, and for no server version.
    fn is_plain_stream(&self) -> bool {
        self.parameter("stream").is_none_or(|stream| matches!(stream, "" | "watch"))
            && self.parameter("sv").is_none_or(str::is_empty)
    }

    /// Sorts by quality, then by specificity.
    fn order(a: &AcceptClause<'_>, b: &AcceptClause<'_>) -> std::cmp::Ordering {
        let vague = |clause: &AcceptClause<'_>| (clause.media.0 == "*", clause.media.1 == "*");
        b.quality.total_cmp(&a.quality).then_with(|| vague(a).cmp(&vague(b)))
    }

    fn names(&self, notation: &str) -> bool {
        match self.media {
            ("*", "*") => true,
            (kind, "*") => notation.split_once('/').is_some_and(|(own, _)| own == kind),
            (kind, exact) => notation.split_once('/') == Some((kind, exact)),
        }
    }

    fn format(&self) -> Option<AcceptedFormat> {
        NOTATIONS
            .into_iter()
            .filter(|notation| self.names(notation))
            .find_map(|n| self.format_in(n))
    }

    /// Returns the format that the parameters ask for with a media type, if it is served.
    fn format_in(&self, content_type: &'static str) -> Option<AcceptedFormat> {
        if !self.is_plain_stream() {
            return None;
        }
        let converted = (self.parameter("as"), self.parameter("g"), self.parameter("v"));
        if converted == (None, None, None) {
            return Some(AcceptedFormat { content_type, ..AcceptedFormat::PLAIN });
        }
        let version = match converted {
            (_, Some("meta.k8s.io"), Some("v1")) => TableVersion::V1,
            (_, Some("meta.k8s.io"), Some("v1beta1")) => TableVersion::V1Beta1,
            _ => return None,
        };
        let representation = match converted.0? {
            // Cells of a table can have any type, which protobuf cannot express.
            "Table" if content_type != PROTOBUF => Representation::Table,
            "PartialObjectMetadata" => Representation::PartialMetadata,
            "PartialObjectMetadataList" => Representation::PartialMetadataList,
            _ => return None,
        };
        Some(AcceptedFormat { representation, content_type, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_served_representation_is_used() {
        let representation =
            |accept| AcceptedFormat::parse(accept).map(|format| format.representation).ok();
        assert_eq!(representation(""), Some(Representation::Plain));
        assert_eq!(representation("*/*"), Some(Representation::Plain));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(representation(table), Some(Representation::Table));
        assert_eq!(
            representation("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"),
            Some(Representation::Plain)
        );
        let parse = |accept| AcceptedFormat::parse(accept).unwrap();
        assert!(parse("application/vnd.kubernetes.protobuf,application/json").is_protobuf());
        assert!(parse("application/vnd.kubernetes.protobuf;stream=watch").is_protobuf());
        assert!(!parse("application/json,application/vnd.kubernetes.protobuf").is_protobuf());
        let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(representation(table), None);
        let metadata =
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        assert_eq!(representation(metadata), Some(Representation::PartialMetadata));
        assert_eq!(representation("text/html"), None);
        assert!(AcceptedFormat::parse("application/yaml").unwrap().is_yaml());
        assert_eq!(
            representation("text/html, application/json;q=0.5"),
            Some(Representation::Plain)
        );
        assert_eq!(representation("application/json;q=0"), Some(Representation::Plain));
        for vague in [
            "application/json;as=Table",
            "application/json;as=Table;v=v1",
            "application/json;g=meta.k8s.io;v=v1",
            "application/json;as=Foo;v=v1;g=meta.k8s.io",
            "application/json;stream=other",
        ] {
            assert_eq!(representation(vague), None, "{vague}");
        }
        assert!(parse("application/json;q=0.5,application/yaml;q=0.9").is_yaml());
        assert!(parse("*/*,application/yaml").is_yaml());
    }

    #[test]
    fn kind_without_a_table_uses_the_next_format() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert!(AcceptedFormat::parse_without_table(table).is_err());
        let either = format!("{table},application/yaml;q=0.5");
        assert!(AcceptedFormat::parse_without_table(&either).is_ok_and(|format| format.is_yaml()));
        let plain = AcceptedFormat::parse_plain(&either);
        assert!(
            plain.is_ok_and(
                |format| format.is_yaml() && format.representation == Representation::Plain
            )
        );
    }

    #[test]
    fn aggregated_discovery_accepts_any_media_type_and_order() {
        let parameters = "as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io";
        for (accept, expected) in [
            (format!("application/json;{parameters}"), Some(JSON)),
            (format!("application/json, application/json; {parameters};q=0.3"), Some(JSON)),
            (format!("application/yaml;{parameters}"), Some(YAML)),
            (format!("application/vnd.kubernetes.protobuf;{parameters}"), Some(PROTOBUF)),
            (format!("application/json;{}", parameters.replace("v2", "v2beta1")), None),
            (format!("text/html;{parameters}"), None),
            ("application/json".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(aggregated_discovery(&accept), expected, "{accept}");
        }
    }

    #[test]
    fn preferred_served_media_type_is_used() {
        let served = ["application/json", "application/x@v1+protobuf"];
        for (accept, expected) in [
            ("", Some(served[0])),
            ("*/*", Some(served[0])),
            ("application/*", Some(served[0])),
            ("application/json;q=0.1,application/x@v1+protobuf", Some(served[1])),
            ("text/html", None),
            ("garbage", None),
        ] {
            assert_eq!(preferred(accept, &served), expected, "{accept}");
        }
    }

    #[test]
    fn unaccepted_formats_list_the_served_ones() {
        let message =
            |result: Result<AcceptedFormat, ApiError>| result.map_err(|error| error.message);
        let all = "only the following media types are accepted: application/json, \
                   application/yaml, application/vnd.kubernetes.protobuf";
        assert_eq!(message(AcceptedFormat::parse("text/html")), Err(all.to_owned()));
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(message(AcceptedFormat::parse_plain(table)), Err(all.to_owned()));
        let streams = "only the following media types are accepted: \
                       application/json;stream=watch, \
                       application/vnd.kubernetes.protobuf;stream=watch";
        assert_eq!(
            message(AcceptedFormat::parse_stream("application/yaml")),
            Err(streams.to_owned())
        );
        assert!(AcceptedFormat::parse_stream("application/json").is_ok());
        let check =
            |accept: &str, route: Route| check_route(accept, route).map_err(|error| error.message);
        for fits in ["", "*/*", "application/json;as=Foo", "text/html, application/yaml;q=0.1"] {
            assert_eq!(check(fits, Route::Objects), Ok(()), "{fits}");
        }
        let none = |available: &str| {
            Err(format!("406: Not Acceptable\n\nAvailable representations: {available}"))
        };
        let objects = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        for other in ["text/html", "application/*", "garbage"] {
            assert_eq!(check(other, Route::Objects), none(objects), "{other}");
        }
        let lists = format!("{objects}, {}", STREAMS.join(", "));
        assert_eq!(check("text/html", Route::Lists), none(&lists));
        assert_eq!(check("application/yaml", Route::Json), none("application/json"));
    }
}
