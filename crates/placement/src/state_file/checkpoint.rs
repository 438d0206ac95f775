//! The frame of a state file: [`Checkpoint`], which is the same for both managers around their [`Body`].
//!
//! It has the versions of a file, their checksums, and the order in which they are tried. It does not interpret
//! the body.

use super::go_json::{self, Decode as _, DecodeError, Faults, Json, decode_fields, object, string};
use super::spew::{Field, dump};
use super::{Gates, Manager, StateFileError, data_preimage, fnv1a, verify};

/// The content of one manager's file, in all versions.
pub(super) trait Body: Default {
    const MANAGER: Manager;

    /// The names of the fields that every version has.
    const FIELDS: [&'static str; 2];

    /// The names of the further fields of `data`. The first one is `podEntries`, which the second-newest
    /// version has too.
    const DATA_FIELDS: &'static [&'static str];

    /// Decodes one of these fields.
    fn decode(
        &mut self,
        field: &'static str,
        json: &Json,
        faults: &mut Faults,
    ) -> Result<(), DecodeError>;

    /// Returns the names of the type under which kubelets hashed a version. The first one is written.
    fn type_names(version: Hashed, gates: Gates) -> &'static [&'static str];

    /// Returns the fields as they are hashed, `podEntries` last.
    fn dumped(&self) -> [Field<'_>; 3];

    /// Returns the members of the file.
    fn members(&self) -> Vec<(&'static str, String)>;

    /// Returns the further members of `data`.
    fn data_members(&self) -> Vec<(&'static str, String)>;
}

/// A version whose fields have a checksum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hashed {
    /// The oldest version that is read. The newest one still writes its checksum.
    Oldest,
    /// The version with `podEntries`.
    WithPods,
}

/// The fields that a version has.
#[derive(Clone, Copy)]
enum Layout {
    Hashed(Hashed),
    Newest,
    /// The content of `data`.
    Data,
}

impl Layout {
    fn fields<B: Body>(self) -> Vec<&'static str> {
        let mut fields = vec!["policyName"];
        fields.extend(B::FIELDS);
        match self {
            Layout::Hashed(Hashed::Oldest) => fields.push("checksum"),
            Layout::Hashed(Hashed::WithPods) => fields.extend(["podEntries", "checksum"]),
            Layout::Newest => fields.extend(["checksum", "data", "dataChecksum"]),
            Layout::Data => fields.extend(B::DATA_FIELDS),
        }
        fields
    }
}

/// The fields of all versions.
#[derive(Debug, Default)]
pub(super) struct Checkpoint<B> {
    policy: String,
    body: B,
    checksum: u64,
    data: String,
    data_checksum: u64,
}

impl<B: Body> Checkpoint<B> {
    pub(super) fn new(policy: &str, body: B) -> Checkpoint<B> {
        Checkpoint { policy: policy.to_owned(), body, ..Checkpoint::default() }
    }

    /// Reads the body of a file. A file of another policy than the configured one is rejected.
    pub(super) fn open(content: &[u8], policy: &str, gates: Gates) -> Result<B, StateFileError> {
        let checkpoint = Checkpoint::<B>::load(content, gates)?;
        if checkpoint.policy != policy {
            return Err(StateFileError::PolicyDiffers {
                manager: B::MANAGER,
                configured: policy.to_owned(),
                stored: checkpoint.policy,
            });
        }
        Ok(checkpoint.body)
    }

    /// Reads a file of any version.
    fn load(content: &[u8], gates: Gates) -> Result<Checkpoint<B>, StateFileError> {
        let manager = B::MANAGER;
        let json = go_json::parse(content).map_err(StateFileError::Undecodable)?;

        let (newest, decoded) = Checkpoint::<B>::decode(&json, Layout::Newest);
        let cause = match decoded {
            Ok(()) => match newest.open_data() {
                Ok(data) => return Ok(data),
                Err(cause) => cause,
            },
            Err(cause) => StateFileError::UndecodableFile { manager, cause },
        };
        if !newest.data.is_empty() || newest.data_checksum != 0 {
            return Err(StateFileError::NewestVersion { manager, cause: cause.into() });
        }

        let (with_pods, decoded) = Checkpoint::decode(&json, Layout::Hashed(Hashed::WithPods));
        if decoded.is_ok() && with_pods.verify(Hashed::WithPods, gates).is_ok() {
            return Ok(with_pods);
        }

        let (oldest, decoded) = Checkpoint::decode(&json, Layout::Hashed(Hashed::Oldest));
        decoded.map_err(StateFileError::Undecodable)?;
        // Files of the time before checksums have none.
        if oldest.checksum != 0 {
            oldest.verify(Hashed::Oldest, gates)?;
        }
        Ok(oldest)
    }

    /// Returns the decoded fields, and the first error.
    fn decode(json: &Json, layout: Layout) -> (Checkpoint<B>, Result<(), DecodeError>) {
        let mut read = Checkpoint::<B>::default();
        let mut faults = Faults::default();
        let (name, fields) = ("checkpoint", layout.fields::<B>());
        let end =
            decode_fields(json, name, &fields, &mut faults, |field, json, faults| match field {
                "policyName" => read.policy.decode(json, field, faults),
                "checksum" => read.checksum.decode(json, field, faults),
                "data" => read.data.decode(json, field, faults),
                "dataChecksum" => read.data_checksum.decode(json, field, faults),
                field => read.body.decode(field, json, faults),
            });
        (read, end.and_then(|()| faults.into_result()))
    }

    /// Returns the content of `data` after checking its checksum.
    fn open_data(&self) -> Result<Checkpoint<B>, StateFileError> {
        let undecodable = |cause| StateFileError::UndecodableData { manager: B::MANAGER, cause };
        let json = go_json::parse(self.data.as_bytes()).map_err(undecodable)?;
        let (data, decoded) = Checkpoint::decode(&json, Layout::Data);
        decoded.map_err(undecodable)?;
        verify(self.data_checksum, &data_preimage(&self.data))?;
        Ok(data)
    }

    /// Accepts the checksum under any of the names that kubelets used; the error is that of the first one.
    fn verify(&self, version: Hashed, gates: Gates) -> Result<(), StateFileError> {
        let mut results = B::type_names(version, gates)
            .iter()
            .map(|name| verify(self.checksum, &self.preimage(version, name)));
        let first = results.next().unwrap_or(Ok(()));
        if first.is_err() && results.any(|result| result.is_ok()) { Ok(()) } else { first }
    }

    fn preimage(&self, version: Hashed, type_name: &str) -> String {
        let mut fields: Vec<Field<'_>> = vec![("PolicyName", "string", &self.policy)];
        let body = self.body.dumped();
        fields.extend(body.iter().take(if version == Hashed::WithPods { 3 } else { 2 }));
        fields.push(("Checksum", "checksum.Checksum", &0_u64));
        dump(type_name, &fields)
    }

    /// Renders the file as a kubelet writes it.
    pub(super) fn render(&self) -> String {
        let data = self.data_json();
        let mut members = self.members();
        members.push(("checksum", fnv1a(&self.checksum_preimage()).to_string()));
        members.push(("data", string(&data)));
        members.push(("dataChecksum", fnv1a(&data_preimage(&data)).to_string()));
        object(members)
    }

    /// Returns the text whose hash is `checksum` in the rendered file.
    pub(super) fn checksum_preimage(&self) -> String {
        let names = B::type_names(Hashed::Oldest, Gates::default());
        self.preimage(Hashed::Oldest, names.first().copied().unwrap_or_default())
    }

    /// Returns the text whose hash is `dataChecksum` in the rendered file.
    pub(super) fn data_checksum_preimage(&self) -> String {
        data_preimage(&self.data_json())
    }

    fn members(&self) -> Vec<(&'static str, String)> {
        let mut members = vec![("policyName", string(&self.policy))];
        members.extend(self.body.members());
        members
    }

    fn data_json(&self) -> String {
        let mut members = self.members();
        members.extend(self.body.data_members());
        object(members)
    }
}

/// Returns the text that is hashed for a file of the oldest version with these fields.
#[cfg(test)]
pub(super) fn preimage_of<B: Body>(json: &str) -> String {
    let json = go_json::parse(json.as_bytes()).unwrap();
    Checkpoint::<B>::decode(&json, Layout::Hashed(Hashed::Oldest)).0.checksum_preimage()
}
