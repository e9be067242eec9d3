# The control plane on the official Airflow image: DAGs, operators, console and command line. Training runs on the Slurm cluster, not here.
# It was written from the image's documentation and not built: building needs a container engine, which the development machines lack.
#
#   docker build --build-arg GIT_COMMIT=$(git rev-parse HEAD) -t alignment .
#   docker run -e AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=postgresql+psycopg://… -e AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC=postgresql+psycopg://… \
#     -e ALIGN_CATALOG_URL=postgresql+psycopg://… -e ALIGN_CLUSTER=… -e MLFLOW_TRACKING_URI=… -e ALIGN_ANNOTATION_URL=… \
#     -p 8080:8080 alignment api-server            (and: scheduler, dag-processor, triggerer)
#   docker run … alignment python -m include.annotation
#
# The second address of Airflow's database is not optional: left out, Airflow derives one for asyncpg, which is not installed; psycopg serves both.
# ALIGN_WORK (scratch, and the validation pages that the console shows) is a volume that workers and API server share.
ARG AIRFLOW_IMAGE=apache/airflow:slim-3.3.2-python3.11
FROM ${AIRFLOW_IMAGE}

ENV ALIGN_HOME=/opt/airflow/alignment
# WORKDIR would make the folder root's. Group 0 may write: the image also runs under any user of that group.
USER root
RUN install -d -o airflow -g 0 -m 775 ${ALIGN_HOME} ${ALIGN_HOME}/.local ${ALIGN_HOME}/.local/work
USER airflow
WORKDIR ${ALIGN_HOME}

# Airflow is among the pins, at the image's own version, so that nothing moves it.
COPY --chown=airflow:0 requirements.txt pyproject.toml README.md LICENSE NOTICE ./
RUN pip install --no-cache-dir -r requirements.txt

COPY --chown=airflow:0 requirements-cluster.txt ./
COPY --chown=airflow:0 bin bin
COPY --chown=airflow:0 configs configs
COPY --chown=airflow:0 include include
COPY --chown=airflow:0 plugins plugins
COPY --chown=airflow:0 dags dags
# Editable: a copy in site-packages would shadow plugins/. It tells Airflow of the connection type Slurm. setuptools is among the pins.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable .

# Recorded beside each stage's code revision: the image holds neither git nor the repository.
ARG GIT_COMMIT=none
# Triggers are loaded from sys.path, never from a DAG bundle: include/ needs the project root there.
ENV ALIGN_GIT_COMMIT=${GIT_COMMIT} \
    ALIGN_WORK=${ALIGN_HOME}/.local/work \
    PYTHONPATH=${ALIGN_HOME}:${ALIGN_HOME}/plugins \
    AIRFLOW__CORE__DAGS_FOLDER=${ALIGN_HOME}/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=${ALIGN_HOME}/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    GIT_PYTHON_REFRESH=quiet \
    MLFLOW_DISABLE_TELEMETRY=true \
    GX_ANALYTICS_ENABLED=false
