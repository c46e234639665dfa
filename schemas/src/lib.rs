//! Tables, ids, storage and outputs on disk, shared by every stage.
