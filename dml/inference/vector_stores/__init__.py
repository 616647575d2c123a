"""Vector data bases: Qdrant, LanceDB and Milvus hold the vectors where one machine is not enough."""
