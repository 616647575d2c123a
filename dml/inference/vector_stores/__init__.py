"""Vector databases: Qdrant, LanceDB and Milvus hold the vectors where one machine is not enough."""
