"""Models of scikit-learn, LightGBM and XGBoost: as the estimators themselves, and as onnxruntime."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.helper import make_attribute
from sklearn import (
    compose,
    decomposition,
    ensemble,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

from ortmodule_py import InferenceSession
from tests.inference.test_session import ONE_THREAD

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightgbm
    import onnxmltools
    import skl2onnx
    import xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType as OtherFloats
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

Array = np.ndarray[Any, Any]
Make = Callable[[], Any]
TOLERANCE = 1e-5
ROWS, COLUMNS = 120, 6


def rows(seed: int = 0, missing: bool = False) -> Array:
    x = np.random.default_rng(seed).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    if missing:
        x[np.random.default_rng(seed + 9).random(x.shape) < 0.1] = np.nan
    return x


def classes(count: int, names: bool = False) -> Array:
    """Labels that depend on the rows, not by a plane."""
    x = rows()
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.3 * np.sin(3 * x[:, 3])
    y = np.digitize(score, np.quantile(score, np.linspace(0, 1, count + 1)[1:-1]))
    return np.array(["ape", "bee", "cat", "dog"])[y] if names else y


def numbers() -> Array:
    x = rows()
    return (x[:, 0] - 2 * x[:, 1] * x[:, 2] + 0.1 * x[:, 4]).astype(np.float32)


def quietly(make: Make) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def plain_attribute(key: str, value: Any, *more: Any, **named: Any) -> onnx.AttributeProto:
    """Newer versions of onnx take no bools and integers of numpy, which skl2onnx writes."""
    if isinstance(value, list) and value and isinstance(value[0], (bool, np.integer)):
        value = [int(each) for each in value]
    return make_attribute(key, value, *more, **named)


def converted(model: Any, x: Any, **options: Any) -> bytes:
    with mock.patch.object(onnx.helper, "make_attribute", plain_attribute):
        onnx_model = quietly(lambda: skl2onnx.to_onnx(model, x, **options))
    return bytes(onnx_model.SerializeToString())


def both(model: bytes, feeds: dict[str, Array]) -> list[Any]:
    """Our results, after comparing them and the types of all values with onnxruntime's."""
    session = InferenceSession(model, ONE_THREAD)
    ours = session.run(None, feeds)
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for get in ("get_inputs", "get_outputs"):
        mine, other = ([(v.name, v.type) for v in getattr(s, get)()] for s in (session, stock))
        assert mine == other
    for mine, other in zip(ours, stock.run(None, feeds), strict=True):
        if isinstance(other, list):
            assert [list(each) for each in mine] == [list(each) for each in other]
            np.testing.assert_allclose(
                [list(each.values()) for each in mine],
                [list(each.values()) for each in other],
                atol=TOLERANCE,
            )
            continue
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        if other.dtype.kind in "OU":
            np.testing.assert_array_equal(mine, other)
        else:
            np.testing.assert_allclose(mine, other, rtol=TOLERANCE, atol=TOLERANCE)
    return ours


CLASSIFIERS: dict[str, Make] = {
    "logistic": lambda: linear_model.LogisticRegression(),
    "sgd": lambda: linear_model.SGDClassifier(loss="log_loss", random_state=0),
    "svc_rbf": lambda: svm.SVC(probability=True, random_state=0),
    "svc_poly": lambda: svm.SVC(kernel="poly", degree=2, probability=True, random_state=0),
    "decision_tree": lambda: tree.DecisionTreeClassifier(max_depth=5, random_state=0),
    "random_forest": lambda: ensemble.RandomForestClassifier(11, random_state=0),
    "extra_trees": lambda: ensemble.ExtraTreesClassifier(11, random_state=0),
    "gradient_boosting": lambda: ensemble.GradientBoostingClassifier(
        n_estimators=9, random_state=0
    ),
    "hist_gradient_boosting": lambda: ensemble.HistGradientBoostingClassifier(max_iter=9),
    "nearest": lambda: neighbors.KNeighborsClassifier(3),
    "gaussian_bayes": lambda: naive_bayes.GaussianNB(),
    "bernoulli_bayes": lambda: naive_bayes.BernoulliNB(),
    "perceptron": lambda: neural_network.MLPClassifier((9,), max_iter=40, random_state=0),
}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier(name: str, count: int) -> None:
    x = rows()
    model = quietly(lambda: CLASSIFIERS[name]().fit(x, classes(count)))
    label, scores = both(converted(model, x[:1], options={"zipmap": False}), {"X": x})
    np.testing.assert_array_equal(label, model.predict(x))
    np.testing.assert_allclose(scores, model.predict_proba(x), rtol=0, atol=TOLERANCE)


MARGINS: dict[str, Make] = {
    "linear_svc": lambda: svm.LinearSVC(random_state=0),
    "sgd": lambda: linear_model.SGDClassifier(random_state=0),
    "svc_rbf": lambda: svm.SVC(decision_function_shape="ovo"),
    "svc_linear": lambda: svm.SVC(kernel="linear"),
    "svc_sigmoid": lambda: svm.SVC(kernel="sigmoid"),
}


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", MARGINS)
def test_classifier_without_probabilities(name: str, count: int) -> None:
    x = rows()
    model = quietly(lambda: MARGINS[name]().fit(x, classes(count)))
    options = None if name == "linear_svc" else {"zipmap": False}
    label, _ = both(converted(model, x[:1], options=options), {"X": x})
    np.testing.assert_array_equal(label, model.predict(x))


REGRESSORS: dict[str, Make] = {
    "linear": lambda: linear_model.LinearRegression(),
    "ridge": lambda: linear_model.Ridge(),
    "sgd": lambda: linear_model.SGDRegressor(random_state=0),
    "svr_rbf": lambda: svm.SVR(),
    "svr_linear": lambda: svm.SVR(kernel="linear"),
    "decision_tree": lambda: tree.DecisionTreeRegressor(max_depth=5, random_state=0),
    "random_forest": lambda: ensemble.RandomForestRegressor(11, random_state=0),
    "extra_trees": lambda: ensemble.ExtraTreesRegressor(11, random_state=0),
    "gradient_boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=9, random_state=0),
    "hist_gradient_boosting": lambda: ensemble.HistGradientBoostingRegressor(max_iter=9),
    "nearest": lambda: neighbors.KNeighborsRegressor(3),
    "perceptron": lambda: neural_network.MLPRegressor(
        hidden_layer_sizes=(9,), max_iter=40, random_state=0
    ),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressor(name: str) -> None:
    x = rows()
    model = quietly(lambda: REGRESSORS[name]().fit(x, numbers()))
    (y,) = both(converted(model, x[:1]), {"X": x})
    np.testing.assert_allclose(y[:, 0], model.predict(x), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("metric", ["euclidean", "manhattan", "cubes", "cdist"])
def test_nearest_of_many_points(metric: str) -> None:
    """Of more points than a loop may have steps."""
    x, points = rows(), np.random.default_rng(7).normal(size=(1500, COLUMNS)).astype(np.float32)
    kind: dict[str, Any] = {"metric": metric}
    if metric in ("cubes", "cdist"):
        kind = {"p": 3} if metric == "cubes" else {}
    model = neighbors.KNeighborsRegressor(3, **kind).fit(points, points[:, 0])
    options = {"optim": "cdist"} if metric == "cdist" else None
    (y,) = both(converted(model, x[:1], options=options), {"X": x})
    np.testing.assert_allclose(y[:, 0], model.predict(x), rtol=TOLERANCE, atol=TOLERANCE)


def test_several_targets() -> None:
    x, y = rows(), np.stack([numbers(), -numbers(), numbers() ** 2], 1)
    model = ensemble.ExtraTreesRegressor(7, max_depth=6, random_state=0).fit(x, y)
    (found,) = both(converted(model, x[:1]), {"X": x})
    np.testing.assert_allclose(found, model.predict(x), rtol=TOLERANCE, atol=TOLERANCE)


TRANSFORMERS: dict[str, Make] = {
    "pca": lambda: decomposition.PCA(3),
    "standard": lambda: preprocessing.StandardScaler(),
    "min_max": lambda: preprocessing.MinMaxScaler(clip=True),
    "robust": lambda: preprocessing.RobustScaler(),
    "l2": lambda: preprocessing.Normalizer(),
    "l1": lambda: preprocessing.Normalizer("l1"),
    "binarizer": lambda: preprocessing.Binarizer(threshold=0.2),
    "polynomial": lambda: preprocessing.PolynomialFeatures(2),
    "bins": lambda: preprocessing.KBinsDiscretizer(4, encode="onehot-dense"),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformer(name: str) -> None:
    x = rows()
    model = quietly(lambda: TRANSFORMERS[name]().fit(x))
    (y,) = both(converted(model, x[:1]), {"X": x})
    np.testing.assert_allclose(y, model.transform(x), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["histograms", "imputer"])
def test_missing_numbers(kind: str) -> None:
    x = rows(missing=True)
    model: Any = ensemble.HistGradientBoostingClassifier(max_iter=9)
    if kind == "imputer":
        forest = ensemble.RandomForestClassifier(9, random_state=0)
        model = pipeline.make_pipeline(impute.SimpleImputer(), forest)
    model.fit(x, classes(3))
    label, scores = both(converted(model, x[:1], options={"zipmap": False}), {"X": x})
    np.testing.assert_array_equal(label, model.predict(x))
    np.testing.assert_allclose(scores, model.predict_proba(x), rtol=0, atol=TOLERANCE)


# ---- strings -----------------------------------------------------------------------------------


def categories() -> Array:
    choose = np.random.default_rng(3)
    columns = [choose.choice(["red", "grün", "blue", "青"], ROWS), choose.choice(["s", "m"], ROWS)]
    return np.stack(columns, 1).astype(object)


ENCODERS: dict[str, Make] = {
    "one_hot": lambda: preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    "strict_one_hot": lambda: preprocessing.OneHotEncoder(sparse_output=False),
    "ordinal": lambda: preprocessing.OrdinalEncoder(),
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("text_type", ["O", "U"])
def test_encoder_of_strings(name: str, text_type: str) -> None:
    x = categories()
    model = ENCODERS[name]().fit(x)
    types = [("X", StringTensorType([None, 2]))]
    (y,) = both(converted(model, None, initial_types=types), {"X": x.astype(text_type)})
    np.testing.assert_array_equal(y, model.transform(x))


def test_unknown_categories_are_no_column() -> None:
    model = ENCODERS["one_hot"]().fit(categories())
    file = converted(model, None, initial_types=[("X", StringTensorType([None, 2]))])
    new = np.array([["red", "xl"], ["", "s"]], object)
    (y,) = both(file, {"X": new})
    np.testing.assert_array_equal(y, model.transform(new))


@pytest.mark.parametrize("zipmap", [False, True])
def test_pipeline_of_numbers_and_strings(zipmap: bool) -> None:
    numeric = pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler())
    columns = compose.ColumnTransformer(
        [("numbers", numeric, list(range(COLUMNS))), ("texts", ENCODERS["one_hot"](), [6, 7])]
    )
    model = pipeline.make_pipeline(columns, linear_model.LogisticRegression())
    x = np.concatenate([rows(missing=True).astype(object), categories()], 1)
    model.fit(x, classes(3, names=True))
    types = [(f"n{i}", FloatTensorType([None, 1])) for i in range(COLUMNS)]
    types += [(f"t{i}", StringTensorType([None, 1])) for i in range(2)]
    file = converted(model, None, initial_types=types, options={"zipmap": zipmap})
    feeds = {f"n{i}": x[:, i : i + 1].astype(np.float32) for i in range(COLUMNS)}
    feeds |= {f"t{i}": x[:, 6 + i : 7 + i] for i in range(2)}
    label, scores = both(file, feeds)
    np.testing.assert_array_equal(label, model.predict(x))
    if zipmap:
        assert set(scores[0]) == {"ape", "bee", "cat"}
        scores = [[row[name] for name in model.classes_] for row in scores]
    np.testing.assert_allclose(scores, model.predict_proba(x), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["random_forest", "svc_rbf", "nearest", "gradient_boosting"])
def test_labels_are_strings(name: str) -> None:
    x = rows()
    model = CLASSIFIERS[name]().fit(x, classes(3, names=True))
    label, maps = both(converted(model, x[:1]), {"X": x})
    np.testing.assert_array_equal(label, model.predict(x))
    found = [[row[each] for each in model.classes_] for row in maps]
    np.testing.assert_allclose(found, model.predict_proba(x), rtol=0, atol=TOLERANCE)


# ---- LightGBM and XGBoost ----------------------------------------------------------------------

BOOSTED: dict[str, Make] = {
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=9, verbose=-1, min_child_samples=3),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=9, max_depth=4),
}
BOOSTED_REGRESSORS: dict[str, Make] = {
    "lightgbm": lambda: lightgbm.LGBMRegressor(n_estimators=9, verbose=-1, min_child_samples=3),
    "xgboost": lambda: xgboost.XGBRegressor(n_estimators=9, max_depth=4),
}
BOOSTED_CONVERTERS: dict[str, Callable[..., onnx.ModelProto]] = {
    "lightgbm": onnxmltools.convert_lightgbm,
    "xgboost": onnxmltools.convert_xgboost,
}


def converted_boosted(name: str, model: Any, **options: Any) -> bytes:
    types = [("X", OtherFloats([None, COLUMNS]))]
    convert = BOOSTED_CONVERTERS[name]
    return bytes(
        quietly(lambda: convert(model, initial_types=types, **options)).SerializeToString()
    )


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", BOOSTED)
def test_boosted_classifier(name: str, count: int) -> None:
    x = rows(missing=True)
    model = quietly(lambda: BOOSTED[name]().fit(x, classes(count)))
    options = {"zipmap": False} if name == "lightgbm" else {}
    label, scores = both(converted_boosted(name, model, **options), {"X": x})
    np.testing.assert_array_equal(label, model.predict(x))
    np.testing.assert_allclose(scores, model.predict_proba(x), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", BOOSTED_REGRESSORS)
def test_boosted_regressor(name: str) -> None:
    x = rows(missing=True)
    model = quietly(lambda: BOOSTED_REGRESSORS[name]().fit(x, numbers()))
    (y,) = both(converted_boosted(name, model), {"X": x})
    np.testing.assert_allclose(y[:, 0], model.predict(x), rtol=TOLERANCE, atol=TOLERANCE)


def test_categories_of_lightgbm() -> None:
    x = rows()
    x[:, 2] = np.random.default_rng(5).integers(0, 6, ROWS)
    model = BOOSTED["lightgbm"]()
    quietly(lambda: model.fit(x, (x[:, 2] % 2).astype(int), categorical_feature=[2]))
    file = converted_boosted("lightgbm", model, zipmap=False)
    label, scores = both(file, {"X": x})
    np.testing.assert_array_equal(label, model.predict(x))
    np.testing.assert_allclose(scores, model.predict_proba(x), rtol=0, atol=TOLERANCE)
