"""Metadata tables: what the cluster knows about itself, as DataFrames, without reading one entry.

spark.read.format("bookkeeper").option("metadataServiceUri", uri).option("table", "fragments").load()
"""
