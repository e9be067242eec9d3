# The control plane on the official Airflow image: DAGs, operators, console and command line. Training runs on the Slurm cluster, not here.
# It was written from the image's documentation and not built: building needs a container engine, which the development machines lack.
#
#   docker build -t alignment .
#   docker run -e AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=… -e ALIGN_CATALOG_URL=… -e MLFLOW_TRACKING_URI=… -e ALIGN_ANNOTATION_URL=… \
#     -p 8080:8080 alignment api-server            (and: scheduler, dag-processor, triggerer)
#   docker run … alignment python -m include.annotation
ARG AIRFLOW_IMAGE=apache/airflow:slim-3.3.2-python3.11
FROM ${AIRFLOW_IMAGE}

# git gives the commit that is recorded beside each stage's code revision.
USER root
RUN apt-get update \
 && apt-get install -y --no-install-recommends git openssh-client \
 && apt-get clean && rm -rf /var/lib/apt/lists/*
USER airflow

ENV ALIGN_HOME=/opt/airflow/alignment
WORKDIR ${ALIGN_HOME}
COPY --chown=airflow:0 requirements.txt pyproject.toml README.md LICENSE NOTICE ./
RUN pip install --no-cache-dir -r requirements.txt

COPY --chown=airflow:0 requirements-cluster.txt ./
COPY --chown=airflow:0 bin bin
COPY --chown=airflow:0 configs configs
COPY --chown=airflow:0 include include
COPY --chown=airflow:0 plugins plugins
COPY --chown=airflow:0 dags dags
# Editable: a copy in site-packages would shadow plugins/. It tells Airflow of the connection type Slurm.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable .

# Triggers are loaded from sys.path, never from a DAG bundle: include/ needs the project root there.
ENV PYTHONPATH=${ALIGN_HOME}:${ALIGN_HOME}/plugins \
    AIRFLOW__CORE__DAGS_FOLDER=${ALIGN_HOME}/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=${ALIGN_HOME}/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    MLFLOW_DISABLE_TELEMETRY=true \
    GX_ANALYTICS_ENABLED=false
